"""How a batch is cut to fit into memory."""

from collections.abc import Callable, Sequence
from typing import Any

from composer.core.data_spec import DataSpec
from composer.core.state import State
from composer.trainer._losses import Losses
from composer.trainer._train_step import TrainStep


class FixedSize:
    """Cuts every batch into micro-batches of ``state.device_train_microbatch_size`` samples."""

    def __init__(self, state: State, step: TrainStep, split: Callable[[Any, Any], Sequence[Any]]):
        self.state = state
        self.step = step
        self.split = split

    def run(self, batch: Any) -> Losses:
        """Trains one step on the batch and returns its losses."""
        return self.step.run(self.split(batch, self.state.device_train_microbatch_size))


def split_batch(data_spec: DataSpec, batch: Any, size: Any) -> Sequence[Any]:
    """Cuts a batch; one that fits already (the last of an epoch, often) is not cut."""
    if data_spec.get_num_samples_in_batch(batch) <= size:
        return [batch]
    return data_spec.split_batch(batch, size)


def parse_microbatch_size(size: Any, loader: Any, argument: str) -> int | float | None:
    """Checks a micro-batch size; None means the loader's own batch size (the batch is not cut).

    Raises:
        ValueError: if the size is not a positive number, or is not given and the loader has no
            batch size.
    """
    if size is None:
        if loader is None:
            return None
        batch_size = getattr(loader, "batch_size", None)
        if batch_size is None:
            raise ValueError(
                f"{argument} is not given, and the dataloader has no `batch_size` to take it from; "
                f"give {argument} as a number of samples."
            )
        return batch_size
    if size == "auto":
        raise ValueError(
            f"{argument}='auto' finds the size from CUDA's out-of-memory errors and is not "
            f"supported on this "
            "device; give a number of samples."
        )
    if isinstance(size, bool) or not isinstance(size, int | float) or size <= 0:
        raise ValueError(f"{argument}={size!r}; it must be a positive number of samples.")
    return size
