"""CheckpointNow saves between two batches when asked from outside, by a signal or a file."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from composer.callbacks.checkpoint_now import CheckpointNow
from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.core.callback import Callback
from tests.composer.callbacks.guarded import batches, make_trainer


class Outside(Callback):
    """Does something to the process in the middle of a batch."""

    def __init__(self, deeds):
        self.deeds = deeds

    def after_forward(self, state, logger):
        self.deeds.pop(int(state.timestamp.batch), lambda: None)()


def send(number):
    return lambda: os.kill(os.getpid(), number)


def run_with(tmp_path, deeds, now=None, length=6, **settings):
    return make_trainer(
        now or CheckpointNow(touch_file=str(tmp_path / "now")),
        Outside(deeds),
        data=batches(length),
        save_folder=str(tmp_path / "saved"),
        save_interval="100ba",
        run_name="run",
        **settings,
    )


def saved(tmp_path):
    return sorted(path.name for path in (tmp_path / "saved").iterdir())


def test_sigusr1_saves_and_goes_on(tmp_path):
    trainer = run_with(tmp_path, {2: send(signal.SIGUSR1)})
    trainer.fit()
    assert saved(tmp_path) == ["ep0-ba3-rank0.pt", "ep0-ba6-rank0.pt", "latest-rank0.pt"]
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    trainer.close()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_touched_file_saves_each_time_it_is_touched(tmp_path):
    (tmp_path / "now").touch()  # was there before: no request

    def touch():
        os.utime(tmp_path / "now", ns=(1, 1 + os.stat(tmp_path / "now").st_mtime_ns))

    trainer = run_with(tmp_path, {1: touch, 3: touch})
    trainer.fit()
    assert [name[:7] for name in saved(tmp_path)] == ["ep0-ba2", "ep0-ba4", "ep0-ba6", "latest-"]
    trainer.close()


def test_sigterm_saves_leaves_and_the_run_goes_on_from_there(tmp_path):
    trainer = run_with(tmp_path, {3: send(signal.SIGTERM)})
    with pytest.raises(SystemExit) as left:
        trainer.fit()
    assert left.value.code == 128 + signal.SIGTERM
    assert saved(tmp_path) == ["ep0-ba4-rank0.pt", "latest-rank0.pt"]
    trainer.close()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    again = run_with(tmp_path, {}, autoresume=True)
    assert int(again.state.timestamp.batch) == 4
    again.fit()
    assert int(again.state.timestamp.batch) == 6
    again.close()
    unbroken = make_trainer(data=batches(6))
    unbroken.fit()
    for mine, other in zip(
        again.state.model.parameters(), unbroken.state.model.parameters(), strict=True
    ):
        assert torch.equal(mine, other)
    unbroken.close()


def twice():
    send(signal.SIGTERM)()
    send(signal.SIGTERM)()


def test_a_launcher_that_passes_the_signal_on_again_is_no_second_request(tmp_path):
    trainer = run_with(tmp_path, {3: twice})
    with pytest.raises(SystemExit):
        trainer.fit()
    assert saved(tmp_path) == ["ep0-ba4-rank0.pt", "latest-rank0.pt"]
    trainer.close()


def test_a_later_sigterm_leaves_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("composer.callbacks.checkpoint_now._SAME_REQUEST_SECONDS", 0)
    trainer = run_with(tmp_path, {3: twice})
    with pytest.raises(SystemExit):
        trainer.fit()
    assert int(trainer.state.timestamp.batch) == 3
    assert saved(tmp_path) == []
    trainer.close()


def test_a_handler_of_the_program_is_called_and_training_stops(tmp_path):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        trainer = run_with(tmp_path, {3: send(signal.SIGTERM)})
        trainer.fit()
        assert heard == [signal.SIGTERM]
        assert int(trainer.state.timestamp.batch) == 4
        assert "ep0-ba4-rank0.pt" in saved(tmp_path)
        trainer.close()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_batch_that_is_saved_anyway_is_saved_once(tmp_path):
    now, number = CheckpointNow(touch_file=None), []
    trainer = run_with(tmp_path, {5: send(signal.SIGUSR1)}, now)
    saver = next(c for c in trainer.state.callbacks if isinstance(c, CheckpointSaver))
    save = saver._save_checkpoint
    saver._save_checkpoint = lambda *args: (number.append(1), save(*args))
    trainer.fit()
    assert len(number) == 1
    trainer.close()


def test_without_a_saver_it_brings_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    deeds = {0: send(signal.SIGUSR1), 2: send(signal.SIGUSR1)}
    trainer = make_trainer(CheckpointNow(), Outside(deeds), data=batches(4), run_name="run")
    trainer.fit()
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert names == ["ep0-ba1-rank0.pt", "ep0-ba3-rank0.pt", "latest-rank0.pt"]
    trainer.close()


def test_outside_the_main_thread_it_says_that_it_is_deaf(tmp_path):
    trainer = run_with(tmp_path, {1: (tmp_path / "now").touch})
    heard = []

    def fit():
        with pytest.warns(UserWarning, match="does not hear signals"):
            trainer.fit()
        heard.append(True)

    thread = threading.Thread(target=fit)
    thread.start()
    thread.join()
    assert heard
    assert "ep0-ba2-rank0.pt" in saved(tmp_path)
    trainer.close()


SCRIPT = """
import time
from composer.callbacks import CheckpointNow
from composer.core.callback import Callback
from tests.composer.callbacks.guarded import batches, make_trainer

class Slow(Callback):
    def after_forward(self, state, logger):
        time.sleep(0.1)
        if state.timestamp.batch == 2:
            open(f"{FOLDER}/began", "w").close()

make_trainer(
    CheckpointNow(), Slow(), data=batches(2000), save_folder=f"{FOLDER}/saved",
    save_interval="5000ba", run_name="run",
).fit()
"""


@pytest.mark.slow
@pytest.mark.parametrize("to_all", [False, True])
def test_a_launched_run_that_is_ended_saves(tmp_path, to_all):
    """SIGTERM to the launcher, or as clusters do, to everything that it started."""
    script = tmp_path / "script.py"
    script.write_text(f"FOLDER = {str(tmp_path)!r}\n{SCRIPT}")
    root = Path(__file__).parents[3]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "composer", "-n", "2", str(script)],
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        for _ in range(600):
            if (tmp_path / "began").exists() or launcher.poll() is not None:
                break
            time.sleep(0.1)
        assert launcher.poll() is None
        if to_all:
            for child in psutil.Process(launcher.pid).children(recursive=True):
                child.terminate()
        launcher.terminate()
        assert launcher.wait(timeout=60) == 128 + signal.SIGTERM
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
    names = [path.name for path in (tmp_path / "saved").iterdir()]
    assert "latest-rank0.pt" in names
    assert len(names) == 2


def train_on_two(folder: str) -> tuple:
    """Only rank 1 gets the signal."""
    rank = int(os.environ["RANK"])
    trainer = make_trainer(
        CheckpointNow(touch_file=None),
        Outside({2: send(signal.SIGTERM)} if rank == 1 else {}),
        data=batches(6, rank=rank),
        save_folder=folder,
        save_interval="100ba",
        run_name="run",
    )
    try:
        trainer.fit()
        code = None
    except SystemExit as left:
        code = left.code
    batch = int(trainer.state.timestamp.batch)
    trainer.close()
    return code, batch
