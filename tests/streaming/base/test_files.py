"""Files that are whole or not there."""

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from streaming.base.files import make_once, name_when_made, remove_file, write_file

CONTENT = b"0123456789" * 1000


def good(path: Path) -> bool:
    return path.exists() and path.stat().st_size == len(CONTENT)


def make(path: Path, log: Path, pause: float = 0.0) -> bool:
    def content(out: BinaryIO) -> None:
        with open(log, "a") as file:
            file.write("made\n")
        out.write(CONTENT[:100])
        out.flush()
        time.sleep(pause)
        out.write(CONTENT[100:])

    return make_once(str(path), lambda: good(path), content)


def test_one_of_many_makes_it(tmp_path: Path) -> None:
    path, log = tmp_path / "sub" / "file", tmp_path / "log"
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=make, args=(path, log, 0.05)) for _ in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert path.read_bytes() == CONTENT
    assert log.read_text() == "made\n"
    assert os.listdir(path.parent) == ["file"]
    assert not make(path, log)


def test_a_killed_maker_holds_nobody_up(tmp_path: Path) -> None:
    path, log = tmp_path / "file", tmp_path / "log"
    child = multiprocessing.get_context("fork").Process(target=make, args=(path, log, 60.0))
    child.start()
    while not log.exists():
        time.sleep(0.01)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert not path.exists() and list(tmp_path.glob("*.tmp"))
    assert make(path, log)
    assert path.read_bytes() == CONTENT and not list(tmp_path.glob("*.tmp"))


def test_a_failed_maker_leaves_nothing(tmp_path: Path) -> None:
    def fail(out: BinaryIO) -> None:
        out.write(b"half")
        raise OSError("disk full")

    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="disk full"):
        make_once(str(path), lambda: good(path), fail)
    assert os.listdir(tmp_path) == ["file"] and path.read_bytes() == b"old"
    assert make(path, tmp_path / "log") and path.read_bytes() == CONTENT


def test_files_without_locks_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(95, "not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    path, seen = tmp_path / "file", []

    def nested(out: BinaryIO) -> None:
        """Writes, and has another write the same file meanwhile."""
        out.write(CONTENT)
        out.flush()
        if not seen:
            seen.extend(os.listdir(tmp_path))
            assert make_once(str(path), lambda: False, nested, 100)
            assert path.read_bytes() == CONTENT
            seen.extend(os.listdir(tmp_path))

    assert make_once(str(path), lambda: good(path), nested, 100)
    assert path.read_bytes() == CONTENT and os.listdir(tmp_path) == ["file"]
    assert len(seen) == 3 and set(map(name_when_made, seen)) == {"file"}


def test_plain_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(str(path), b"one")
    write_file(str(path), b"two!")
    assert path.read_bytes() == b"two!" and os.listdir(tmp_path) == ["file"]
    assert remove_file(str(path)) == 4 and remove_file(str(path)) == 0
