from composer.callbacks.lr_monitor import LRMonitor
from composer.loggers.in_memory_logger import InMemoryLogger
from tests.composer.plugins import HandRun


def test_every_group_of_every_optimizer():
    memory = InMemoryLogger()
    run = HandRun(LRMonitor(), memory, max_duration="2ba").loaded()
    run.state.optimizers[0].add_param_group({"params": [], "lr": 0.5})
    run.fit().close()
    assert [value for _, value in memory.data["lr-SGD/group0"]] == [0.1, 0.1]
    assert [value for _, value in memory.data["lr-SGD/group1"]] == [0.5, 0.5]
    assert [stamp.batch.value for stamp, _ in memory.data["lr-SGD/group0"]] == [1, 2]
