"""A dataloader together with what the trainer must know about its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from composer.core import microbatch
from composer.core.microbatch import count_samples, default_split_batch
from composer.core.types import Batch
from composer.utils import dist

__all__ = ["DataSpec", "default_split_batch", "ensure_data_spec"]

_split_list = microbatch._split_list
_split_tensor = microbatch._split_tensor


def _unchanged(batch: Batch) -> Batch:
    return batch


class DataSpec:
    """A dataloader, and how its batches are transformed, split and counted.

    Args:
        dataloader: Any iterable of batches.
        num_samples: Samples in an epoch, over all ranks; the dataset's length if None.
        num_tokens: Tokens in an epoch, over all ranks.
        batch_transforms: Applied to each whole batch, on the CPU.
        microbatch_transforms: Applied to each micro-batch, on the device.
        split_batch: Splits a batch into micro-batches of a size; `default_split_batch` if None.
        get_num_samples_in_batch: Counts the samples of a batch.
        get_num_tokens_in_batch: Counts the tokens of a batch, as a number or as a dict with the
            keys ``total`` and ``loss_generating``.

    Raises:
        ValueError: If the dataloader is being iterated over already, or would give every rank the
            same samples.
    """

    def __init__(
        self,
        dataloader: Iterable[Batch],
        num_samples: int | None = None,
        num_tokens: int | None = None,
        batch_transforms: Callable[[Batch], Batch] | None = None,
        microbatch_transforms: Callable[[Batch], Batch] | None = None,
        split_batch: Callable[[Batch, int | float], Sequence[Batch]] | None = None,
        get_num_samples_in_batch: Callable[[Batch], int | float] | None = None,
        get_num_tokens_in_batch: Callable[[Batch], int | dict[str, int]] | None = None,
    ) -> None:
        self.dataloader = dataloader
        self.num_tokens = num_tokens
        self.batch_transforms = batch_transforms or _unchanged
        self.microbatch_transforms = microbatch_transforms or _unchanged
        self.split_batch = split_batch or default_split_batch
        self.get_num_samples_in_batch = (
            get_num_samples_in_batch or self._default_get_num_samples_in_batch
        )
        self._num_tokens_in_batch = get_num_tokens_in_batch
        self.num_samples = _length_of_dataset(dataloader) if num_samples is None else num_samples
        if isinstance(dataloader, DataLoader):
            _check_not_started(dataloader)
            _check_is_distributed(dataloader)

    def count_targets(self, batch: Batch) -> int | None:
        """Returns how many tokens the loss is a mean over; None if nobody told it how to count."""
        counted = None if self._num_tokens_in_batch is None else self._num_tokens_in_batch(batch)
        return counted.get("loss_generating") if isinstance(counted, Mapping) else None

    def get_num_tokens_in_batch(self, batch: Batch, token_type: str = "total") -> int:
        """Returns how many tokens a batch has.

        Args:
            batch: The batch.
            token_type: "total", or "loss_generating" for those that the loss is a mean over.

        Raises:
            ValueError: If the tokens of that type are not counted.
        """
        if self._num_tokens_in_batch is None:
            return self._default_get_num_tokens_in_batch(batch)
        counted = self._num_tokens_in_batch(batch)
        if not isinstance(counted, Mapping):
            return counted
        if token_type not in counted:
            raise ValueError(
                f"get_num_tokens_in_batch does not count {token_type!r} tokens; it counts "
                f"{sorted(counted)}"
            )
        return counted[token_type]

    # No method: a spec that held itself would keep its loader's workers until garbage is collected.
    _default_get_num_samples_in_batch = staticmethod(count_samples)

    def _default_get_num_tokens_in_batch(self, batch: Batch) -> int:
        """Counts by shape: padding counts too."""
        if isinstance(batch, Mapping) and "input_ids" in batch:
            ids = batch["input_ids"]
            return ids.shape[0] * ids.shape[1]
        max_seq_len = getattr(getattr(self.dataloader, "dataset", None), "max_seq_len", None)
        if max_seq_len is None:
            return 0
        return int(max_seq_len * self.get_num_samples_in_batch(batch))


def _length_of_dataset(dataloader: Any) -> int | None:
    if not isinstance(dataloader, DataLoader) or not isinstance(dataloader.dataset, Sized):
        return None
    try:
        return len(dataloader.dataset)
    except (TypeError, NotImplementedError):
        return None


def _check_not_started(dataloader: DataLoader[Any]) -> None:
    if getattr(dataloader, "_iterator", None) is not None:
        raise ValueError(
            "The dataloader has an active iterator. This could lead to errors when training or "
            "resuming: its workers are ahead of what was trained on. Make a new DataLoader"
        )


def _check_is_distributed(dataloader: DataLoader[Any]) -> None:
    if dist.get_world_size() == 1 or isinstance(dataloader.dataset, IterableDataset):
        return
    samplers = (dataloader.sampler, dataloader.batch_sampler)
    if not any(isinstance(sampler, DistributedSampler) for sampler in samplers):
        raise ValueError(
            f"This run has {dist.get_world_size()} ranks, and the dataloader's sampler "
            f"{type(dataloader.sampler).__name__} gives each of them the same samples. Give it "
            "sampler=composer.utils.dist.get_sampler(dataset)"
        )


def ensure_data_spec(dataloader: DataSpec | Iterable[Batch] | dict[str, Any]) -> DataSpec:
    """Returns a DataSpec of a DataSpec, of a dict of its arguments, or of any dataloader."""
    if isinstance(dataloader, dict):
        return DataSpec(**dataloader)
    if isinstance(dataloader, DataSpec):
        return dataloader
    return DataSpec(dataloader)
