"""Folders of shards that a logger uploads: no index and no pointer before all ranks' files."""

import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from composer.checkpoint.shard_index import INDEX_NAME
from composer.loggers.remote_uploader_downloader import RemoteUploaderDownloader
from composer.utils import dist
from composer.utils.object_store.local_object_store import LocalObjectStore
from tests.composer.checkpoint.sharded_runs import make, names, train
from tests.launch import run_ranks


class Moody(LocalObjectStore):
    """Takes its time with shards, or refuses them."""

    refuses = False

    def upload_object(self, object_name: str, *args: Any, **kwargs: Any) -> None:
        if object_name.endswith(".distcp"):
            time.sleep(0.5)
            if self.refuses:
                raise PermissionError("The store refuses this rank.")
        super().upload_object(object_name, *args, **kwargs)


def _logger(store: str, refuses: bool) -> RemoteUploaderDownloader:
    logger = RemoteUploaderDownloader(f"file://{store}")
    logger._last.wait_before_next_try_in_seconds = 0.02
    if dist.get_global_rank() == 1:
        logger._uploader.remote_backend = Moody(store)
        logger._uploader.remote_backend.refuses = refuses
    return logger


def _save(folder: str, refuses: bool, save_async: bool) -> str:
    store = f"{folder}/store"
    trainer, _ = make(
        "2ba",
        {"state_dict_type": "sharded"},
        save_folder=f"{folder}/local",
        save_async=save_async,
        loggers=_logger(store, refuses),
    )
    error = ""
    try:
        trainer.fit()
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    start = time.monotonic()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*may not have been uploaded")
        trainer.close()
    assert time.monotonic() - start < 30
    return error


def _resume(folder: str) -> str | None:
    trainer, _ = train(
        "4ba",
        {"state_dict_type": "sharded"},
        save_folder=f"{folder}/empty",
        autoresume=True,
        loggers=_logger(f"{folder}/store", False),
    )
    return trainer.state.load_path


@pytest.mark.parametrize("save_async", [False, True])
def test_index_and_pointer_come_after_all_shards(tmp_path: Path, save_async: bool) -> None:
    told = run_ranks(_save, 2, str(tmp_path), False, save_async)
    assert told == ["", ""]
    folder = tmp_path / "store" / "run" / "checkpoints" / "ep0-ba2"
    pointer = folder.parent / "latest-rank0.pt.symlink"
    assert names(folder) == [INDEX_NAME, "__0_0.distcp", "__1_0.distcp"]
    assert pointer.read_text() == "run/checkpoints/ep0-ba2"
    times = [(folder / name).stat().st_mtime_ns for name in names(folder)]
    assert pointer.stat().st_mtime_ns >= times[0] >= max(times[1:])
    if not save_async:
        assert run_ranks(_resume, 2, str(tmp_path)) == ["run/checkpoints/ep0-ba2"] * 2


def test_neither_comes_if_a_rank_fails(tmp_path: Path) -> None:
    first, second = run_ranks(_save, 2, str(tmp_path), True, False)
    assert second == "PermissionError: The store refuses this rank."
    assert first == "RuntimeError: An upload of rank 1 failed: The store refuses this rank."
    store = tmp_path / "store" / "run" / "checkpoints"
    assert names(store) == ["ep0-ba2"] and names(store / "ep0-ba2") == ["__0_0.distcp"]
