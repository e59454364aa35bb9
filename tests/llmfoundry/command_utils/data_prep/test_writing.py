"""Output folders that take their place at the end, and what cannot give its place to them."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from composer.utils.object_store.local_object_store import LocalObjectStore
from llmfoundry.command_utils.data_prep._writing import (
    REPORT_FILENAME,
    check_output_folder,
    finished_folder,
    is_whole,
)
from llmfoundry.utils.exceptions import OutputFolderNotEmptyError

MINE = {"n": 1}


def write(output: str, content: str, replaces: bool = False) -> None:
    with finished_folder(output, MINE, replaces) as folder:
        (folder / "shard").write_text(content)
        (folder / REPORT_FILENAME).write_text('{"arguments": {"n": 1}}')
        (folder / "index.json").write_text("{}")


def test_a_link_to_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    write(str(tmp_path / "out"), "a")
    assert (tmp_path / "out").is_symlink() and (tmp_path / "disk" / "shard").read_text() == "a"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["disk", "out"]


def test_folders_that_cannot_be_replaced_are_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for output in (".", str(tmp_path), "/proc"):
        with pytest.raises(ValueError, match="Name a folder inside it"):
            check_output_folder(output)
    write("inner", "a")
    assert (tmp_path / "inner" / "shard").exists()


def test_what_cannot_take_its_place_stays(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=r"out\.unfinished is whole but could not become") as caught,
        finished_folder(str(tmp_path / "out")) as folder,
    ):
        (folder / "shard").write_text("a")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()
    assert caught.value.errno == errno.ENOTEMPTY
    assert (tmp_path / "out.unfinished" / "shard").read_text() == "a"
    (tmp_path / "out" / "theirs").unlink()
    write(str(tmp_path / "out"), "b")
    assert (tmp_path / "out" / "shard").read_text() == "b"
    assert not (tmp_path / "out.unfinished").exists()


def test_file_systems_without_locks_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    write(str(tmp_path / "out"), "a")
    assert (tmp_path / "out" / "shard").exists()


def test_what_the_same_call_wrote_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = str(tmp_path / "out")
    write(output, "a", replaces=True)
    with pytest.raises(OutputFolderNotEmptyError):
        write(output, "b")
    with pytest.raises(OutputFolderNotEmptyError):
        check_output_folder(output, {"n": 2}, replaces=True)
    with pytest.raises(KeyboardInterrupt), finished_folder(output, MINE, replaces=True):
        raise KeyboardInterrupt
    assert (tmp_path / "out" / "shard").read_text() == "a"
    assert [each.name for each in tmp_path.iterdir()] == ["out"]

    def killed(source: Path, target: Path) -> None:
        if source.suffix == ".unfinished":
            raise KeyboardInterrupt
        os.rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write(output, "b", replaces=True)
    assert {each.name for each in tmp_path.iterdir()} == {"out.replaced", "out.unfinished"}
    write(output, "c", replaces=True)
    assert (tmp_path / "out" / "shard").read_text() == "c"
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_in_a_store_the_index_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = f"file://{tmp_path}/out"
    write(output, "a")
    with pytest.raises(OutputFolderNotEmptyError):
        write(output, "b")
    upload = LocalObjectStore.upload_object

    def killed(store: LocalObjectStore, name: str, *rest: Any, **settings: Any) -> None:
        upload(store, name, *rest, **settings)
        if name.endswith("shard"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalObjectStore, "upload_object", killed)
        with pytest.raises(KeyboardInterrupt):
            write(output, "b", replaces=True)
    assert (tmp_path / "out" / "shard").read_text() == "b" and not is_whole(output)
    write(output, "c")  # goes on like any call that was killed
    assert (tmp_path / "out" / "shard").read_text() == "c" and is_whole(output)
