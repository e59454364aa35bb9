import pytest
import torch

from composer.callbacks.optimizer_monitor import OptimizerMonitor
from composer.loggers.in_memory_logger import InMemoryLogger
from composer.optim.decoupled_weight_decay import DecoupledAdamW
from tests.composer.plugins import HandRun


def test_norms_of_gradients():
    memory = InMemoryLogger()
    run = HandRun(OptimizerMonitor(batch_log_interval=2), memory, max_duration="2ba").loaded().fit()
    named = dict(run.state.model.named_parameters())
    for name, parameter in named.items():
        [(stamp, value)] = memory.data[f"l2_norm/grad/{name}"]
        assert stamp.batch == 2
        assert value == pytest.approx(parameter.grad.norm().item())
    everything = torch.cat([parameter.grad.flatten() for parameter in named.values()])
    assert memory.most_recent_values["l2_norm/grad/global"] == pytest.approx(
        everything.norm().item()
    )
    run.close()


def test_c4_an_interval_of_nothing_is_refused():
    with pytest.raises(ValueError, match="batch_log_interval=0"):
        OptimizerMonitor(batch_log_interval=0)


@pytest.mark.parametrize("asked", [True, False])
def test_the_optimizers_own_metrics(asked):
    memory = InMemoryLogger()
    monitor = OptimizerMonitor(log_optimizer_metrics=asked, batch_log_interval=1)
    run = HandRun(monitor, memory, max_duration="2ba").loaded()
    run.state.optimizers = DecoupledAdamW(run.state.model.parameters(), lr=0.1)
    run.fit().close()
    for kind in ("moment", "param", "update"):
        assert (f"l2_norm/{kind}/first.weight" in memory.data) == asked
    assert "l2_norm/grad/first.weight" in memory.data


def test_frozen_parameters_are_left_out():
    memory = InMemoryLogger()
    run = HandRun(OptimizerMonitor(batch_log_interval=1), memory, max_duration="1ba").loaded()
    run.state.model.first.requires_grad_(False)
    run.fit().close()
    assert "l2_norm/grad/first.weight" not in memory.data
    assert "l2_norm/grad/last.weight" in memory.data
