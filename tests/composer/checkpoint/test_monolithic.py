"""One-file checkpoints: their forms, what they refuse to read, and that a kill leaves none half."""

import datetime
import os
import pickle
import random
import shutil
import signal
import sys
import tarfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.torch_version import TorchVersion

from composer.checkpoint.allow_list import CheckpointContentError
from composer.checkpoint.atomic import is_leftover, update_latest
from composer.checkpoint.autoresume import newest_complete_checkpoint
from composer.checkpoint.monolithic import (
    STATES_FILENAME,
    is_whole,
    opened_plain,
    safe_torch_load,
    write_checkpoint_file,
)
from composer.utils.compression import CompressorNotFound

CONTENT: dict[str, Any] = {
    "state": {
        "model": {"weight": torch.arange(6.0).reshape(2, 3), "step": torch.tensor(3)},
        "timestamp": {"Timestamp": {"batch": 5, "total_wct": datetime.timedelta(seconds=2)}},
        "algorithms": [("BlurPool", {"repr": "BlurPool()"})],
        "metadata": {"torch_version": TorchVersion("2.7.0"), "device": None},
    },
    "rng": [
        {
            "python": random.Random(1).getstate(),
            "numpy": ("MT19937", np.arange(3, dtype=np.uint32), 1, 0, 0.5),
            "torch": torch.ByteTensor([1, 2]),
        },
    ],
    "values": {"loss": np.float64(0.5), "names": np.array(["a", "b"]), "set": {1, 2}, "raw": b"x"},
}


def assert_same(left: Any, right: Any) -> None:
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right) and left.dtype == right.dtype
    elif isinstance(left, np.ndarray):
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert type(left) is type(right) and len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert left == right


def read(path: str) -> Any:
    with opened_plain(path) as plain:
        return safe_torch_load(plain)


ENDINGS = [".pt", "", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.lzma", ".pt.gz", ".pt.bz2"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_written_is_read(tmp_path: Path, ending: str) -> None:
    if ending.startswith(".pt.") and not shutil.which({"gz": "gzip", "bz2": "bzip2"}[ending[4:]]):
        pytest.skip(f"no program for {ending}")
    path = str(tmp_path / "folder" / f"checkpoint{ending}")
    assert write_checkpoint_file(CONTENT, path) == path
    assert os.listdir(tmp_path / "folder") == [f"checkpoint{ending}"]
    assert_same(read(path), CONTENT)
    assert is_whole(path)


def test_tarball_holds_the_states_file(tmp_path: Path) -> None:
    path = write_checkpoint_file(CONTENT, str(tmp_path / "checkpoint.tar.gz"))
    with tarfile.open(path) as tar:
        assert tar.getnames() == [STATES_FILENAME]


def test_tarball_of_a_stranger_cannot_write_outside(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    torch.save(CONTENT, plain)
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        tar.add(plain, arcname="../../escaped.txt")
        tar.add(plain, arcname=f"./{STATES_FILENAME}")
    assert_same(read(str(tmp_path / "evil.tar")), CONTENT)
    assert not list(tmp_path.parent.rglob("escaped.txt"))
    with tarfile.open(tmp_path / "empty.tar", "w") as tar:
        tar.add(plain, arcname="something")
    with pytest.raises(ValueError, match="without composer_states.pt"):
        read(str(tmp_path / "empty.tar"))


def test_names_that_say_no_form_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not end with a valid tarfile extension"):
        write_checkpoint_file(CONTENT, str(tmp_path / "checkpoint.tar.zzz"))
    with pytest.raises(CompressorNotFound, match="Could not find compressor for"):
        write_checkpoint_file(CONTENT, str(tmp_path / "checkpoint.pt.zzz"))
    assert not list(tmp_path.iterdir())


def test_upstream_file_is_read(golden: Path) -> None:
    content = safe_torch_load(golden / "checkpoints" / "mpt-mid-run-ep1-ba5-rank0.pt")
    assert content["state"]["timestamp"]["Timestamp"]["batch"] == 5
    assert set(content["rng"][0]) == {"python", "numpy", "torch"}


class Bomb:
    """Runs a command when a careless reader unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_malicious_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    torch.save({"state": {"model": {}, "callbacks": {"Innocent": Bomb(tmp_path / "hurt")}}}, path)
    with pytest.raises(CheckpointContentError, match=r"posix\.system.*add_safe_globals") as error:
        safe_torch_load(path)
    assert "global not in allowlist" in str(error.value)
    assert isinstance(error.value, (ValueError, pickle.UnpicklingError))
    assert not (tmp_path / "hurt").exists()


def test_malicious_old_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    torch.save({"x": Bomb(tmp_path / "hurt")}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointContentError, match=r"posix\.system"):
        safe_torch_load(path)
    assert not (tmp_path / "hurt").exists()


class Note:
    """A class of a user's callback."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Note)

    def __hash__(self) -> int:
        return 0


def test_saving_warns_of_what_loading_will_refuse(tmp_path: Path) -> None:
    content = {"state": {"callbacks": {"Mine": {"note": Note(), "steps": [1, Path("x")]}}}}
    path = str(tmp_path / "x.pt")
    with pytest.warns(UserWarning, match="2 thing.*state/callbacks/Mine/note .*Note.*steps/1"):
        write_checkpoint_file(content, path)
    with pytest.raises(CheckpointContentError, match="Note"):
        safe_torch_load(path)


def test_a_class_that_the_user_allows_is_read(tmp_path: Path) -> None:
    with torch.serialization.safe_globals([Note]):
        path = write_checkpoint_file({"note": Note()}, str(tmp_path / "x.pt"))
        assert safe_torch_load(path) == {"note": Note()}


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*nowhere\.pt"):
        safe_torch_load(tmp_path / "nowhere.pt")


def test_validation_function_may_say_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_checkpoint_file(CONTENT, str(tmp_path / "x.pt"))
    (tmp_path / "checks_of_test.py").write_text(
        "def fine(path, specs): return path.endswith('x.pt') and specs is None\n"
        "def wrong(path, specs): return False\n",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CHECKPOINT_VALIDATION_FUNCTION", "checks_of_test.fine")
    assert_same(safe_torch_load(path), CONTENT)
    monkeypatch.setenv("CHECKPOINT_VALIDATION_FUNCTION", "checks_of_test.wrong")
    with pytest.raises(ValueError, match="is not valid"):
        safe_torch_load(path)


@pytest.mark.parametrize("ending", [".pt", ".tar"])
def test_a_file_that_was_cut_short_is_known(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    write_checkpoint_file(CONTENT, str(path))
    whole = path.read_bytes()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        # The padding after a tarball's last member is not part of the checkpoint.
        assert not is_whole(path) or ending == ".tar" and size == len(whole) - 1
    assert not is_whole(tmp_path / "nowhere.pt")


# Killing. A forked child saves in a loop as a run with keep-2 does, and is killed: in the fast test
# at each file-system event that Python reports, one child an event, and at random moments.

NAME = "ep0-ba{batch}-rank0.pt"


def save_in_a_loop(folder: Path, size: int, steps: int) -> None:
    for step in range(1, steps + 1):
        weight = torch.full((size,), float(step))
        path = folder / NAME.format(batch=step)
        write_checkpoint_file({"state": {"weight": weight, "step": step}}, str(path))
        update_latest(path, folder / "latest-rank0.pt")
        (folder / NAME.format(batch=step - 2)).unlink(missing_ok=True)


def in_a_child(body: Callable[[], None]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # fork with threads: the child only saves
        pid = os.fork()
    if pid == 0:
        try:
            body()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return pid


def newest_step(folder: Path) -> int:
    """Finds the newest checkpoint as autoresume does, checks it, and returns its step."""
    found = newest_complete_checkpoint(
        folder, "latest-rank0.pt", "ep{epoch}-ba{batch}-rank{rank}.pt"
    )
    if found is None:
        return 0
    state = safe_torch_load(found)["state"]
    assert os.path.basename(found) == NAME.format(batch=state["step"])
    assert torch.equal(state["weight"], torch.full_like(state["weight"], state["step"]))
    return int(state["step"])


def kill_at_event(folder: Path, number: int) -> bool:
    """Saves three times, killed at a file-system event; returns whether it was reached."""

    def body() -> None:
        seen = 0

        def count(event: str, args: tuple[Any, ...]) -> None:
            nonlocal seen
            if event.startswith(("os.", "open", "shutil.")):
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        save_in_a_loop(folder, 100, 3)

    _, status = os.waitpid(in_a_child(body), 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def test_b42_kill_at_every_file_system_event_leaves_a_complete_newest(tmp_path: Path) -> None:
    number, last = 0, 0
    while True:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        killed = kill_at_event(folder, number)
        step = newest_step(folder)
        assert step >= last, "a later kill cannot leave an older checkpoint"
        last = step
        if not killed:
            break
        # The next run, in the same folder, is not in the way of what was left.
        save_in_a_loop(folder, 100, 3)
        assert newest_step(folder) == 3
        names = {path.name for path in folder.iterdir() if not is_leftover(path)}
        assert names == {"ep0-ba2-rank0.pt", "ep0-ba3-rank0.pt", "latest-rank0.pt"}
    assert number > 20 and last == 3


def kill_at_random_moments(folder: Path, kills: int, size: int, longest: float) -> int:
    """Returns how many of the kills hit a save in the middle."""
    rng = random.Random(0)
    hits, last = 0, 0
    for _ in range(kills):
        pid = in_a_child(lambda: save_in_a_loop(folder, size, 10**6))
        time.sleep(rng.random() * longest)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        hits += any(is_leftover(path) for path in folder.iterdir())
        step = newest_step(folder)
        assert step > 0 or last == 0, "the newest complete checkpoint was lost"
        last = step
    return hits


def test_b42_kill_at_random_moments_leaves_a_complete_newest(tmp_path: Path) -> None:
    assert kill_at_random_moments(tmp_path, kills=40, size=300_000, longest=0.04) > 5


@pytest.mark.slow
def test_b42_kill_at_many_random_moments_leaves_a_complete_newest(tmp_path: Path) -> None:
    assert kill_at_random_moments(tmp_path, kills=600, size=1_000_000, longest=0.08) > 80
