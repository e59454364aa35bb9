"""Files that appear whole, the link to the last of them, and what killed saves leave."""

import errno
import os
from pathlib import Path

import pytest
import torch

from composer.checkpoint.atomic import is_leftover, remove_leftovers, update_latest, written_aside
from composer.checkpoint.monolithic import safe_torch_load, write_checkpoint_file


def test_b42_failed_write_changes_nothing(tmp_path: Path) -> None:
    path = write_checkpoint_file({"step": 1}, str(tmp_path / "x.pt"))
    with pytest.raises(RuntimeError, match="disk full"), written_aside(path) as aside:
        Path(aside).write_text("half")
        raise RuntimeError("disk full")
    assert os.listdir(tmp_path) == ["x.pt"]
    assert safe_torch_load(path) == {"step": 1}


def test_latest_is_a_relative_link_and_moves(tmp_path: Path) -> None:
    first = write_checkpoint_file({"step": 1}, str(tmp_path / "run" / "ba1.pt"))
    second = write_checkpoint_file({"step": 2}, str(tmp_path / "run" / "ba2.pt"))
    latest = tmp_path / "run" / "latest-rank0.pt"
    for path in (first, second):
        update_latest(path, latest)
        assert os.readlink(latest) == os.path.basename(path)
    (tmp_path / "run").rename(tmp_path / "moved")
    assert safe_torch_load(tmp_path / "moved" / "latest-rank0.pt") == {"step": 2}
    with pytest.raises(FileNotFoundError, match="no such checkpoint"):
        update_latest(tmp_path / "nowhere.pt", latest)
    with pytest.raises(FileExistsError, match="is not a link"):
        update_latest(tmp_path / "moved" / "ba1.pt", tmp_path / "moved" / "ba2.pt")


def test_leftovers_are_known_and_removed(tmp_path: Path) -> None:
    path = str(tmp_path / "ba1.pt")
    leftover = tmp_path / ".ba1.pt.partial"
    leftover.write_text("half")
    shards = tmp_path / ".ba2.partial"
    shards.mkdir()
    (shards / "__0_0.distcp").write_text("half")
    assert is_leftover(leftover) and not is_leftover(path)
    write_checkpoint_file({"step": 1}, path)
    assert not leftover.exists(), "saving again replaces what a killed save left"
    assert remove_leftovers(tmp_path) == [str(shards)]
    assert os.listdir(tmp_path) == ["ba1.pt"]


def test_only_leftovers_of_a_template_are_removed(tmp_path: Path) -> None:
    ours, others = tmp_path / ".ep0-ba1.pt.partial", tmp_path / ".model.pt.partial"
    for path in (ours, others):
        path.write_text("half")
    assert remove_leftovers(tmp_path, "ep{epoch}-ba{batch}.pt") == [str(ours)]
    assert others.exists()


def test_what_the_disk_said_is_told_with_the_name(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no device that is always full")
    (tmp_path / "x.pt").write_text("old")
    with (
        pytest.raises(OSError, match="No space left on device: .*x.pt'") as error,
        written_aside(tmp_path / "x.pt"),
        open("/dev/full", "wb", buffering=0) as full,
    ):
        torch.save({"a": torch.zeros(1 << 20)}, full)  # torch speaks of a position in a file
    assert error.value.errno == errno.ENOSPC and "position" not in str(error.value)
    assert os.listdir(tmp_path) == ["x.pt"] and (tmp_path / "x.pt").read_text() == "old"
