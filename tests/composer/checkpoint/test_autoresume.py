"""Where a restarted run goes on."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from composer.checkpoint.atomic import update_latest
from composer.checkpoint.autoresume import (
    find_autoresume_checkpoint,
    find_remote_checkpoint,
    is_later,
)
from composer.checkpoint.monolithic import write_checkpoint_file
from composer.checkpoint.sharded import write_sharded
from composer.core.logger_destination import LoggerDestination
from composer.utils import dist
from composer.utils.object_store.local_object_store import LocalObjectStore
from tests.launch import run_ranks

NAME = "ep{epoch}-ba{batch}-rank{rank}.pt"
LATEST = "latest-rank{rank}.pt"


def put(folder: Path, *batches: int, latest: int | None = None) -> None:
    for batch in batches:
        write_checkpoint_file({"batch": batch}, str(folder / f"ep0-ba{batch}-rank0.pt"))
    if latest is not None:
        update_latest(folder / f"ep0-ba{latest}-rank0.pt", folder / "latest-rank0.pt")


def found(folder: Path, overwrite: bool = False, latest: str | None = LATEST) -> str | None:
    path = find_autoresume_checkpoint(folder, latest, "run", filename=NAME, overwrite=overwrite)
    return None if path is None else os.path.basename(path)


def test_nothing_to_resume(tmp_path: Path) -> None:
    assert found(tmp_path / "nowhere") is None
    assert found(tmp_path) is None
    (tmp_path / ".ep0-ba3-rank0.pt.partial").write_text("half")
    (tmp_path / "notes.txt").write_text("x")
    assert found(tmp_path) is None


def test_latest_says_it(tmp_path: Path) -> None:
    put(tmp_path, 9, 10, latest=10)
    assert found(tmp_path) == "ep0-ba10-rank0.pt"


def test_b45_order_is_by_step_not_by_text_or_time(tmp_path: Path) -> None:
    put(tmp_path, 9, 10, 99, 100)
    os.utime(tmp_path / "ep0-ba9-rank0.pt")
    assert found(tmp_path) == "ep0-ba100-rank0.pt"
    assert found(tmp_path, latest=None) == "ep0-ba100-rank0.pt"


def test_b42_killed_between_rename_and_link(tmp_path: Path) -> None:
    put(tmp_path, 90, 100, latest=90)
    assert found(tmp_path) == "ep0-ba100-rank0.pt"


def put_folder(folder: Path, batch: int) -> Path:
    path = folder / f"ep0-ba{batch}"
    write_sharded({"batch": batch, "rows": torch.ones(9)}, str(path))
    return path


def test_b42_a_folder_of_shards_counts_if_its_index_and_shards_are_there(tmp_path: Path) -> None:
    put(tmp_path, 1, 4, latest=4)
    names = [NAME, "ep{epoch}-ba{batch}"]

    def newest() -> str:
        path = find_autoresume_checkpoint(tmp_path, LATEST, "run", filename=names)
        return os.path.basename(str(path))

    for batch in (2, 5, 6):
        put_folder(tmp_path, batch)
    assert newest() == "ep0-ba6"
    (tmp_path / "ep0-ba6" / ".metadata").unlink()
    assert newest() == "ep0-ba5"
    update_latest(tmp_path / "ep0-ba5", tmp_path / "latest-rank0.pt")
    assert newest() == "ep0-ba5"
    shard = tmp_path / "ep0-ba5" / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert newest() == "ep0-ba4-rank0.pt"
    (tmp_path / ".ep0-ba7.partial").mkdir()
    assert newest() == "ep0-ba4-rank0.pt"


def test_later_of_two_names() -> None:
    names = ["{run_name}-ep{epoch}-ba{batch}.pt", "ep{epoch}-ba{batch}"]
    assert is_later("s/run-ep0-ba10.pt", "run-ep0-ba9.pt", names, "run")
    assert is_later("s/ep0-ba10/", "run-ep0-ba9.pt", names, "run")
    assert not is_later("s/ep0-ba9", "run-ep0-ba9.pt", names, "run")
    assert not is_later("s/other.pt", "run-ep0-ba9.pt", names, "run")


def test_b47_folder_of_an_earlier_longer_run(tmp_path: Path) -> None:
    put(tmp_path, 700, 100, latest=100)
    assert found(tmp_path, overwrite=True) == "ep0-ba100-rank0.pt"


def test_link_to_nowhere_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path, 1, 2, latest=2)
    (tmp_path / "ep0-ba2-rank0.pt").unlink()
    assert found(tmp_path) == "ep0-ba1-rank0.pt"


@pytest.mark.parametrize("latest", [2, None])
def test_b42_files_that_were_cut_short_are_passed_over(tmp_path: Path, latest: int | None) -> None:
    put(tmp_path, 1, 2, latest=latest)
    path = tmp_path / "ep0-ba2-rank0.pt"
    path.write_bytes(path.read_bytes()[:-10])
    assert found(tmp_path) == "ep0-ba1-rank0.pt"


def test_latest_outside_the_template(tmp_path: Path) -> None:
    put(tmp_path, 1)
    write_checkpoint_file({}, str(tmp_path / "elsewhere" / "model.pt"))
    update_latest(tmp_path / "elsewhere" / "model.pt", tmp_path / "latest-rank0.pt")
    assert found(tmp_path) == "model.pt"


def test_names_are_filled_in(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    put(folder, 3, latest=3)
    path = find_autoresume_checkpoint(
        str(tmp_path / "{run_name}" / "checkpoints"), "/latest-rank{rank}.pt", "run", filename=NAME
    )
    assert path == str(folder / "ep0-ba3-rank0.pt")


LATEST_REMOTE = "{run_name}/latest-rank{rank}.pt"


class Keeps(LoggerDestination):
    """Gives files back out of a folder; keeps them only if told."""

    def __init__(self, folder: Path, keeps: bool = True) -> None:
        self.folder = folder
        self.keeps = keeps

    def can_upload_files(self) -> bool:
        return self.keeps

    def download_file(
        self,
        remote_file_name: str,
        destination: str,
        overwrite: bool = False,
        progress_bar: bool = True,
    ) -> None:
        assert self.keeps
        shutil.copyfile(self.folder / remote_file_name, destination)


def point(folder: Path, target: str) -> None:
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "latest-rank0.pt.symlink").write_text(target)


def test_stores_are_asked_in_order(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    point(second, "run/ba2.pt")
    sources = [
        Keeps(first, keeps=False),
        LoggerDestination(),
        Keeps(first),
        LocalObjectStore(second),
    ]
    assert find_remote_checkpoint(LATEST_REMOTE, "run", sources) == ("run/ba2.pt", sources[3])
    point(first, "run/ba1.pt")
    assert find_remote_checkpoint(LATEST_REMOTE, "run", sources) == ("run/ba1.pt", sources[2])
    assert find_remote_checkpoint(LATEST_REMOTE, "other", sources) is None
    assert find_remote_checkpoint(LATEST_REMOTE, "run", []) is None


def _find(folder: str) -> tuple[str | None, str | None, str]:
    stores = [LocalObjectStore(folder) if dist.get_global_rank() == 0 else LocalObjectStore("/no")]
    remote = find_remote_checkpoint(LATEST_REMOTE, "run", stores)
    local = find_autoresume_checkpoint(folder, LATEST, "run", filename=NAME)
    if dist.get_global_rank() == 1:
        os.path.exists = lambda path: False  # type: ignore[method-assign]
    with pytest.raises(RuntimeError) as caught:
        find_autoresume_checkpoint(folder, LATEST, "run", filename=NAME)
    return local, None if remote is None else remote[0], str(caught.value)


def test_ranks_agree(tmp_path: Path) -> None:
    put(tmp_path, 3, latest=3)
    point(tmp_path, "run/ba1.pt")
    for local, remote, error in run_ranks(_find, 2, str(tmp_path)):
        assert local == str(tmp_path / "ep0-ba3-rank0.pt") and remote == "run/ba1.pt"
        assert "ranks [1] cannot see it" in error
