"""What the loaders of a recipe have beside their data set, and the torch loader that it makes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from composer.utils import dist
from llmfoundry.config.problems import suggestion
from llmfoundry.utils.exceptions import NotEnoughDatasetSamplesError
from streaming.base.dataloader import StreamingDataLoader
from streaming.base.dataset import StreamingDataset

__all__ = ["LoaderOptions", "check_dataset_keys"]


@dataclass(frozen=True)
class LoaderOptions:
    """How batches are made.

    Args:
        drop_last: Leaves out a last batch that is not full.
        num_workers: Worker processes; 0 reads in the main process, and then the defaults of
            ``prefetch_factor`` and ``persistent_workers`` mean nothing.
        pin_memory: Pins batches for a faster copy to the GPU; without one nothing is pinned.
        prefetch_factor: Batches that each worker keeps ready.
        persistent_workers: Keeps the workers from epoch to epoch.
        timeout: Seconds to wait for a worker; 0 waits.

    Raises:
        ValueError: A setting has no effect without workers.
    """

    drop_last: bool
    num_workers: int
    pin_memory: bool = True
    prefetch_factor: int | None = 2
    persistent_workers: bool = True
    timeout: int = 0

    def __post_init__(self) -> None:
        idle = {"prefetch_factor": (None, 2), "timeout": (0,)}
        for name, values in idle.items():
            value = getattr(self, name)
            if self.num_workers == 0 and value not in values:
                raise ValueError(
                    f"{name}={value} has no effect with num_workers=0, which reads in the main "
                    f"process. Remove {name}, or set num_workers."
                )

    def loader(
        self,
        dataset: StreamingDataset,
        collate: Callable[[list[Any]], dict[str, Any]],
        batch_size: int,
        dataset_cfg: Mapping[str, Any],
    ) -> DataLoader[Any]:
        """Makes the loader of a data set.

        Raises:
            NotEnoughDatasetSamplesError: There is less than one batch, and it is to be dropped.
        """
        dataset.drop_partial = self.drop_last
        if self.drop_last and len(dataset) < batch_size:
            copies = dataset.replication or 1
            source = ("hf_name", "local", "remote", "streams")
            raise NotEnoughDatasetSamplesError(
                dataset_name=str(next((v for key in source if (v := dataset_cfg.get(key))), None)),
                split=str(dataset_cfg.get("split")),
                dataloader_batch_size=batch_size,
                world_size=dist.get_world_size(),
                full_dataset_size=dataset.epoch_size,
                minimum_dataset_size=dist.get_world_size() // copies * batch_size,
            )
        return StreamingDataLoader(dataset, **self.arguments(collate, batch_size))

    def arguments(self, collate: Callable[..., Any], batch_size: int) -> dict[str, Any]:
        """What a torch loader is built with."""
        return {
            "collate_fn": collate,
            "batch_size": batch_size,
            "drop_last": self.drop_last,
            "num_workers": self.num_workers,
            "pin_memory": self.pin_memory and torch.cuda.is_available(),
            "prefetch_factor": self.prefetch_factor if self.num_workers > 0 else None,
            "persistent_workers": self.persistent_workers and self.num_workers > 0,
            "timeout": self.timeout,
        }


def check_dataset_keys(dataset_cfg: Mapping[str, Any], known: set[str]) -> None:
    """Refuses settings of a data set that nothing reads.

    Raises:
        TypeError: There is one.
    """
    unknown = sorted(set(dataset_cfg) - known)
    if unknown:
        hints = " ".join(f"{key}: {suggestion(key, known)}" for key in unknown)
        raise TypeError(
            f"train_loader/eval_loader dataset got an unexpected keyword argument: {unknown}. "
            f"{hints}"
        )
