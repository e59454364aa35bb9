"""Loggers and callbacks in a real run: what is told is told once, in order, also over a resume."""

import re
import sys

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composer import Callback, Trainer
from composer.algorithms import GradientClipping
from composer.callbacks import (
    CheckpointSaver,
    EarlyStopper,
    LRMonitor,
    NaNMonitor,
    OptimizerMonitor,
    RuntimeEstimator,
    SpeedMonitor,
)
from composer.loggers import ConsoleLogger, FileLogger, InMemoryLogger
from composer.models import ComposerClassifier


def loader(rows):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 4, generator=generator)
    return DataLoader(TensorDataset(x, x.argmax(dim=1)), batch_size=8)


def trainer(**kwargs):
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4)
    settings = {
        "model": ComposerClassifier(net, num_classes=4),
        "optimizers": torch.optim.SGD(net.parameters(), lr=0.1),
        "train_dataloader": loader(40),
        "max_duration": "2ep",
        "run_name": "run",
        "progress_bar": False,
    }
    return Trainer(**(settings | kwargs))


def run(**kwargs):
    made = trainer(**kwargs)
    made.fit()
    made.close()
    return made


def test_the_default_progress_on_a_pipe_has_no_control_characters(capfd):
    run(eval_dataloader=loader(16), progress_bar=True)
    text = capfd.readouterr().err
    assert not any(ord(character) < 32 and character != "\n" for character in text)
    assert re.search(
        r"^train 10/10 ba \(100%\)  epoch 2/2  loss \d\S+  lr 0.1  sp/s \S+  data wait \d+%  "
        r"eta 0:00:00  mem ",
        text,
        re.MULTILINE,
    )
    assert len(re.findall(r"^eval 2/2 ba \(100%\)  CrossEntropy \d", text, re.MULTILINE)) == 2
    assert sys.stderr.write("") == 0


def test_the_console_tells_every_second_batch(tmp_path):
    path = tmp_path / "console.txt"
    with path.open("w") as stream:
        run(loggers=ConsoleLogger("2ba", stream))
    text = path.read_text()
    batches = re.findall(r"^\[epoch=(\d)\]\[batch=(\d)/5\]:$", text, re.MULTILINE)
    # The first batch, then every second one.
    assert batches == [("1", "1"), ("1", "2"), ("1", "4"), ("2", "1"), ("2", "3"), ("2", "5")]
    assert len(re.findall(r"Train loss/train/total: \d", text)) == len(batches)


def test_loggers_may_be_given_as_callbacks(tmp_path):
    log = FileLogger(str(tmp_path / "log.txt"), capture_stdout=False, capture_stderr=False)
    run(callbacks=[log, InMemoryLogger()])
    assert steps(tmp_path / "log.txt", "loss/train/total") == list(range(10))


def steps(path, name):
    found = re.findall(r"^\[metric\]\[batch=(\d+)\]: (\S+): ", path.read_text(), re.MULTILINE)
    return [int(step) for step, metric in found if metric == name]


class Killed(Exception):
    pass


class Dies(Callback):
    def __init__(self, at):
        self.at = at

    def batch_end(self, state, logger):
        if state.timestamp.batch == self.at:
            raise Killed


def test_b57_and_b51_a_killed_run_goes_on_from_the_folder_of_a_saver_given_as_callback(tmp_path):
    log, memories = tmp_path / "log.txt", []
    for dies_at in (5, 7, None):
        memories.append(InMemoryLogger())
        file_logger = FileLogger(str(log), capture_stdout=False, capture_stderr=False)
        saver = CheckpointSaver(tmp_path / "{run_name}", save_interval="3ba")
        made = trainer(
            loggers=[memories[-1], file_logger],
            callbacks=[saver, LRMonitor(), SpeedMonitor(window_size=1), Dies(dies_at)],
            max_duration="7ba",
            autoresume=True,
        )
        if dies_at is None:
            made.fit()
        else:
            with pytest.raises(Killed):
                made.fit()
        made.close()
    assert steps(log, "loss/train/total") == list(range(7))
    assert steps(log, "lr-SGD/group0") == list(range(1, 8))
    in_memory = [
        [stamp.batch.value for stamp, _ in memory.data["loss/train/total"]] for memory in memories
    ]
    assert in_memory == [[0, 1, 2, 3, 4], [3, 4, 5, 6], [6]]
    assert not any("throughput/samples_per_sec" in memory.data for memory in memories[2:])


def test_all_together():
    memory = InMemoryLogger()
    run(
        eval_dataloader=loader(16),
        algorithms=GradientClipping("norm", 1e-3),
        loggers=memory,
        callbacks=[
            SpeedMonitor(window_size=2),
            LRMonitor(),
            NaNMonitor(),
            RuntimeEstimator(time_unit="seconds"),
            OptimizerMonitor(batch_log_interval=1),
        ],
    )
    assert memory.most_recent_values["l2_norm/grad/global"] == pytest.approx(1e-3, rel=1e-3)
    assert memory.most_recent_values["throughput/samples_per_sec"] > 0
    assert 0 < memory.most_recent_values["time/remaining_estimate"] < 10  # the last evaluation
    assert len(memory.data["metrics/eval/MulticlassAccuracy"]) == 2


def test_early_stopping_on_a_real_metric():
    stopper = EarlyStopper("MulticlassAccuracy", "eval", comp="less", patience="1ep")
    made = run(eval_dataloader=loader(16), callbacks=stopper, max_duration="9ep")
    assert made.state.timestamp.epoch < 9
    assert 0 <= stopper.best.item() <= 1
