import re
import sys
from pathlib import Path

import pytest
import torch

from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.core.event import Event
from composer.loggers.file_logger import FileLogger
from composer.loggers.in_memory_logger import InMemoryLogger
from tests.composer.plugins import HandRun


def quiet(path, **kwargs):
    return FileLogger(str(path), capture_stdout=False, capture_stderr=False, **kwargs)


def steps(path: Path, name: str) -> list[int]:
    return [
        int(step)
        for step, found in re.findall(
            r"^\[metric\]\[batch=(\d+)\]: (\S+): ", path.read_text(), re.M
        )
        if found == name
    ]


def test_lines(tmp_path):
    path = tmp_path / "log.txt"
    run = HandRun(quiet(path))
    run.logger.log_hyperparameters({"lr": 0.1})
    run.logger.log_metrics({"loss": 2, "acc": 0.25}, step=1)
    run.logger.log_traces({"t": 1})
    run.logger.log_table(["a"], [[1]], name="tab")
    run.close()
    assert path.read_text().splitlines(keepends=True) == [
        "[hyperparameter]: lr: 0.1000 \n",
        "[metric][batch=1]: loss: 2 \n",
        "[metric][batch=1]: acc: 0.2500 \n",
        "[trace]: t:1\n",
        '[table]: tab: {"columns":["a"],"data":[[1]]}\n',
    ]


def test_names_are_known_from_init_on(tmp_path):
    logger = quiet(tmp_path / "{run_name}-{rank}.txt", remote_file_name="/logs/{run_name}.txt")
    with pytest.raises(RuntimeError, match="INIT"):
        logger.filename
    HandRun(logger, run_name="r").close()
    assert logger.filename == str(tmp_path / "r-0.txt")
    assert logger.remote_file_name == "logs/r.txt"
    assert (tmp_path / "r-0.txt").exists()


def test_output_of_the_process_is_captured_and_the_streams_are_given_back(tmp_path, capsys):
    before = sys.stdout.write, sys.stderr.write
    logger = FileLogger(str(tmp_path / "log.txt"))
    print("before INIT\nsecond line")
    run = HandRun(logger)
    print("no newline", end="")
    print("to stderr", file=sys.stderr)
    print(" yet")
    sys.stdout.write("10%\r50%\r\x1b[31m100%\x1b[0m\n")
    sys.stdout.write("unfinished")
    run.close()
    print("after close")
    assert (tmp_path / "log.txt").read_text().splitlines() == [
        "[stdout]: before INIT",
        "[stdout]: second line",
        "[stderr]: to stderr",
        "[stdout]: no newline yet",
        "[stdout]: 100%",
        "[stdout]: unfinished",
    ]
    assert (sys.stdout.write, sys.stderr.write) == before
    assert "no newline yet" in capsys.readouterr().out


def test_two_loggers_capture_at_once(tmp_path, capsys):
    before = sys.stdout.write
    paths = [tmp_path / "1.txt", tmp_path / "2.txt"]
    first, second = FileLogger(str(paths[0])), FileLogger(str(paths[1]))
    run = HandRun(first, second)
    print("hello")
    assert paths[0].read_text() == paths[1].read_text() == "[stdout]: hello\n"
    first.close(run.state, run.logger)  # out of order: the second's wrapper is in the way
    print("later")
    assert paths[0].read_text() == "[stdout]: hello\n"
    assert paths[1].read_text() == "[stdout]: hello\n[stdout]: later\n"
    second.close(run.state, run.logger)
    print("last")
    assert paths[1].read_text() == "[stdout]: hello\n[stdout]: later\n"
    assert capsys.readouterr().out == "hello\nlater\nlast\n"
    del sys.stdout.write  # what is left of the first passes everything on
    assert sys.stdout.write == before


def every_second_batch(state, event):
    return event == Event.BATCH_CHECKPOINT and state.timestamp.batch.value % 2 == 0


def test_b57_each_step_once_after_a_resume(tmp_path):
    path, checkpoints = tmp_path / "log.txt", tmp_path / "checkpoints"
    saver = CheckpointSaver(checkpoints, "ba{batch}.pt", save_interval=every_second_batch)
    run = HandRun(quiet(path), saver, max_duration="5ba")
    run.logger.log_table(["a"], [[1]])
    run.loaded().fit()
    del run  # killed: nothing was closed
    assert steps(path, "time/batch") == [0, 1, 2, 3, 4]

    saved = torch.load(checkpoints / "ba4.pt", weights_only=False)["state"]
    saver = CheckpointSaver(checkpoints, "ba{batch}.pt", save_interval=every_second_batch)
    run = HandRun(quiet(path), saver, max_duration="8ba")
    run.loaded(saved).fit().close()
    assert steps(path, "time/batch") == list(range(8))
    assert steps(path, "loss/train/total") == list(range(8))
    assert path.read_text().count("[table]") == 1


def test_a_fresh_run_moves_an_earlier_file_aside(tmp_path):
    path = tmp_path / "log.txt"
    for _ in range(3):
        HandRun(quiet(path), max_duration="1ba").loaded().fit().close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log.txt", "log.txt.1", "log.txt.2"]
    assert steps(path, "time/batch") == [0]


def test_overwrite(tmp_path):
    path = tmp_path / "log.txt"
    for _ in range(2):
        HandRun(quiet(path, overwrite=True), max_duration="1ba").loaded().fit().close()
    assert [each.name for each in tmp_path.iterdir()] == ["log.txt"]
    assert steps(path, "time/batch") == [0]


def test_a_resumed_run_without_its_place_goes_on_at_the_end(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("earlier\n")
    run = HandRun(quiet(path), max_duration="4ba")
    run.state.timestamp = run.state.timestamp.copy(batch=3, epoch=1)
    run.loaded().fit().close()
    assert path.read_text().startswith("earlier\n")
    assert steps(path, "time/batch") == [3]


class Keeps(InMemoryLogger):
    def __init__(self):
        super().__init__()
        self.uploads = []

    def can_upload_files(self):
        return True

    def upload_file(self, state, remote_file_name, file_path, *, overwrite):
        self.uploads.append((state.timestamp.batch.value, remote_file_name, file_path.read_text()))


@pytest.mark.parametrize(("interval", "batches"), [(2, [0, 2, 4, 5, 5]), ("1ep", [0, 3, 3, 5, 5])])
def test_uploads(tmp_path, interval, batches):
    keeps = Keeps()
    logger = quiet(tmp_path / "log.txt", flush_interval=interval, remote_file_name="{run_name}.txt")
    run = HandRun(keeps, logger, max_duration="5ba", batches_per_epoch=5 if interval == 2 else 3)
    run.loaded().fit().close()
    assert [batch for batch, _, _ in keeps.uploads] == batches
    assert {name for _, name, _ in keeps.uploads} == {"run.txt"}
    assert keeps.uploads[-1][2] == (tmp_path / "log.txt").read_text()


def test_double_init(tmp_path):
    run = HandRun(quiet(tmp_path / "log.txt"))
    with pytest.raises(RuntimeError, match="its own FileLogger"):
        run.state.callbacks[0].run_event(Event.INIT, run.state, run.logger)
    run.close()


@pytest.mark.parametrize("interval", ["10sp", 0])
def test_wrong_interval(tmp_path, interval):
    with pytest.raises(ValueError, match="flush_interval"):
        quiet(tmp_path / "log.txt", flush_interval=interval)
