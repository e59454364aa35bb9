"""Whose checkpoints lie where a run saves: another run's stop it (B47), its own do not (B43)."""

from pathlib import Path
from typing import Any

import pytest

from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.checkpoint.conflicts import refuse_store_of_another_run
from composer.core.callback import Callback
from composer.core.timestamp import Timestamp
from composer.utils.file_helpers import (
    extract_path_from_symlink,
    list_remote_objects,
    maybe_create_object_store_from_uri,
    parse_uri,
)
from composer.utils.object_store import LocalObjectStore
from tests.composer.checkpoint.sharded_runs import train

PLACES = ["", "file://", "memory://conflicts"]


def names(folder: str) -> list[str]:
    found = list_remote_objects(folder if "://" in folder else f"file://{folder}")
    return sorted(name.rpartition("/")[2] for name in found)


def latest(folder: str) -> str:
    store = maybe_create_object_store_from_uri(folder)
    if store is None:
        return Path(folder, "latest-rank0.pt").readlink().name
    pointer = f"{parse_uri(folder)[2]}/latest-rank0.pt.symlink"
    return extract_path_from_symlink(pointer, store).rpartition("/")[2]


@pytest.mark.parametrize("save_async", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_b47_a_later_checkpoint_of_an_earlier_run(
    place: str, save_async: bool, tmp_path: Path
) -> None:
    folder = f"{place}{tmp_path}/{save_async}"
    train("6ba", None, save_folder=folder)
    before = names(folder)
    how: dict[str, Any] = {"save_folder": folder, "save_async": save_async}
    seen = []
    with pytest.raises(FileExistsError, match=r"ba\d-rank0.pt is later.*batch 0.*overwrite=True"):
        train("5ba", None, save_interval="5ba", callbacks=[Counts(seen)], **how)
    assert names(folder) == before and not seen
    how |= {"save_overwrite": True, "save_num_checkpoints_to_keep": 1}
    train("5ba", None, save_interval="5ba", **how)
    assert latest(folder) == "ep0-ba5-rank0.pt"
    assert names(folder) == sorted([*before, "ep0-ba5-rank0.pt"])


class Counts(Callback):
    """Notes the batches that begin."""

    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def batch_start(self, state: Any, logger: Any) -> None:
        self.seen.append(int(state.timestamp.batch))


@pytest.mark.parametrize("place", PLACES[1:])
def test_b43_what_arrived_before_the_pointer_moved_is_replaced(place: str, tmp_path: Path) -> None:
    folder = f"{place}{tmp_path}/run"
    train("4ba", None, save_folder=folder)
    store = maybe_create_object_store_from_uri(folder)
    assert store is not None
    name = parse_uri(folder)[2]
    (tmp_path / "pointer").write_text(f"{name}/ep0-ba2-rank0.pt")
    store.upload_object(f"{name}/latest-rank0.pt.symlink", tmp_path / "pointer")
    trainer, diary = train("6ba", None, save_folder=folder, autoresume=True)
    assert trainer.state.load_path == f"{name}/ep0-ba2-rank0.pt" and len(diary.losses) == 4
    assert latest(folder) == "ep0-ba6-rank0.pt"


def test_b42_b43_a_file_that_was_cut_short_is_passed_over_and_replaced(tmp_path: Path) -> None:
    train("4ba", None, save_folder=str(tmp_path))
    path = tmp_path / "ep0-ba4-rank0.pt"
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[:100])
    _, diary = train("4ba", None, save_folder=str(tmp_path), autoresume=True)
    assert len(diary.losses) == 2 and path.stat().st_size == whole


def test_b43_what_a_second_saver_lost_is_replaced(tmp_path: Path) -> None:
    for end in ("5ba", "8ba"):
        second = CheckpointSaver(tmp_path / "second", save_interval="3ba", weights_only=True)
        how: dict[str, Any] = {"save_interval": "4ba", "autoresume": True, "callbacks": [second]}
        if end == "5ba":  # killed at batch 7, of which the first saver knows 4
            how["callbacks"] = [second, Dies()]
            with pytest.raises(KeyboardInterrupt):
                train("8ba", None, save_folder=str(tmp_path / "first"), **how)
        else:
            train(end, None, save_folder=str(tmp_path / "first"), **how)
    assert [path.name for path in sorted((tmp_path / "second").glob("ep*"))] == [
        f"ep0-ba{batch}-rank0.pt" for batch in (3, 6, 8)
    ]


class Dies(Callback):
    def batch_start(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == 7:
            raise KeyboardInterrupt


class Mute(LocalObjectStore):
    """A store that does not let itself be listed."""

    def list_objects(self, prefix: str | None = None) -> list[str]:
        raise PermissionError("no listing")


def test_b47_names_of_files_and_of_folders_in_a_store(tmp_path: Path) -> None:
    for name in ("run/ep0-ba5/.metadata", "run/ep0-ba9.txt", "other/ep0-ba9"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    store, templates = LocalObjectStore(tmp_path), ["run/ep{epoch}-ba{batch}.pt"]
    refuse_store_of_another_run(store, templates, Timestamp())
    templates.append("run/ep{epoch}-ba{batch}")
    refuse_store_of_another_run(store, templates, Timestamp(batch=5))
    with pytest.raises(FileExistsError, match="run/ep0-ba5 is later than this run"):
        refuse_store_of_another_run(store, templates, Timestamp(batch=4))
    refuse_store_of_another_run(Mute(tmp_path), templates, Timestamp())
    refuse_store_of_another_run(Mute(tmp_path), ["{epoch}"], Timestamp())
