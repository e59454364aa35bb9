"""A dictionary of sharded tensors, written to a folder and read again by torch's checkpoint API."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from composer.utils import dist
from composer.utils.checkpoint import ensure_valid_checkpoint

__all__ = ["FileSystemReaderWithValidation", "read_sharded", "write_sharded"]


class FileSystemReaderWithValidation(FileSystemReader):
    """Reads shards from a folder, each after a user's function may have refused it.

    Args:
        path: The folder.
    """

    def __init__(self, path: str) -> None:
        if not Path(path).is_dir():
            raise ValueError(f"There is no folder of shards at {path}.")
        super().__init__(path)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        """Reads what the plan asks for."""
        wanted: dict[str, list[Any]] = {}
        for item in plan.items:
            info = self.storage_data[item.storage_index]
            wanted.setdefault(info.relative_path, []).append(info)
        for relative_path, specs in wanted.items():
            ensure_valid_checkpoint(os.path.join(self.path, relative_path), specs)
        return super().read_data(plan, planner)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """Reads what there is to read."""
        ensure_valid_checkpoint(os.path.join(self.path, ".metadata"))
        return super().read_metadata(*args, **kwargs)


def write_sharded(state: dict[str, Any], folder: str) -> None:
    """Writes each rank's shards, and an index, to a folder. All ranks call it."""
    with _plain_errors():
        save(state, storage_writer=FileSystemWriter(folder))
    dist.barrier()


def read_sharded(state: dict[str, Any], folder: str, planner: LoadPlanner | None = None) -> None:
    """Fills a dictionary of tensors from a folder, whatever the number of ranks that wrote it.

    All ranks call it.

    Args:
        state: The tensors, as they are sharded now; changed in place.
        folder: The folder.
        planner: How to map the one on the other; by default by name.
    """
    reader = FileSystemReaderWithValidation(folder)
    with _plain_errors():
        load(state, storage_reader=reader, planner=planner)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Raises on all ranks what went wrong on the first; torch's own error is no ``Exception``."""
    try:
        yield
    except CheckpointException as error:
        raise error.failures[min(error.failures)][0] from error
