"""StreamingDataLoader: a DataLoader that knows how far it has come."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from streaming.base.dataset import StreamingDataset
from streaming.base.handover import HandOver, forget_ended


class StreamingDataLoader(DataLoader[Any]):
    """A torch ``DataLoader`` with ``state_dict`` and ``load_state_dict``, for ``StreamingDataset``.

    It counts the batches that it hands out (not those that workers have ready), by how many samples
    go into them, so that a collator that packs several into one row does not mislead it. With
    ``drop_last`` the dataset leaves the epoch's last, shorter batch out on all ranks alike.

    Args:
        args: As of ``DataLoader``.
        kwargs: As of ``DataLoader``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_samples_yielded = 0
        if isinstance(self.dataset, StreamingDataset) and self.batch_size is not None:
            self._agree(self.dataset, self.batch_size)

    def _agree(self, dataset: StreamingDataset, batch_size: int) -> None:
        """Makes sure that loader and dataset mean the same batches."""
        if dataset.batch_size is None:
            dataset.batch_size = batch_size
        if dataset.batch_size != batch_size:
            raise ValueError(
                f"The loader's batch_size is {batch_size}, but the dataset's is "
                f"{dataset.batch_size}. They must be equal for ranks and workers to get whole "
                "batches: pass the same, or leave the dataset's out."
            )
        dataset.drop_partial, samples = False, len(dataset)
        dataset.drop_partial = self.drop_last
        if self.drop_last and samples < batch_size:
            raise ValueError(
                f"drop_last=True leaves nothing: a rank gets {samples} samples in an epoch, "
                f"which is less than its batch of {batch_size}. Use a smaller batch, fewer ranks "
                "or drop_last=False."
            )

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # (torch names its private iterator classes there, but only promises to iterate)
        """The batches of the next epoch."""
        self.num_samples_yielded = 0
        if isinstance(self.dataset, StreamingDataset):
            self.dataset.drop_partial = self.drop_last
        try:
            for batch in self._begin():
                self.num_samples_yielded += self.batch_size or 1
                yield batch
        finally:
            forget_ended()

    def _begin(self) -> Iterator[Any]:
        """Torch's iterator, the workers of which hand their batches over."""
        if not self.num_workers:
            return super().__iter__()
        collate, self.collate_fn = self.collate_fn, HandOver(self.collate_fn)
        try:
            return super().__iter__()
        finally:
            self.collate_fn = collate

    def state_dict(self) -> dict[str, Any] | None:
        """What must be kept to go on after the last batch that was handed out."""
        if not isinstance(self.dataset, StreamingDataset):
            return None
        if self.dataset.batch_size is None:  # Batches are made elsewhere: it counted samples.
            return self.dataset.state_dict(self.num_samples_yielded, from_beginning=False)
        return self.dataset.state_after(self.num_samples_yielded)

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Makes the next iteration go on where a state says."""
        if isinstance(self.dataset, StreamingDataset):
            self.dataset.load_state_dict(obj)
            self.num_samples_yielded = 0
