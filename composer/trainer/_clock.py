"""Wall-clock time and the one place where training reads numbers from the device."""

import time
from datetime import timedelta
from typing import Any

import torch

from composer.core.state import State
from composer.devices.device import Device
from composer.trainer._dataloading import Number, whole_count
from composer.trainer._losses import Losses
from composer.utils import dist


class LazyLosses(dict[str, float]):
    """Losses by name, brought to the host when one is first asked for, all together.

    Reading a number from a GPU waits for it to have finished; a step that nobody logs need not.
    """

    def __init__(self, on_device: dict[str, torch.Tensor]):
        super().__init__(on_device)  # type: ignore[arg-type]  # until they are read
        self._is_read = not on_device

    def _read(self) -> None:
        if not self._is_read:
            self._is_read = True
            tensors = list(super().values())
            values = torch.stack(tensors).tolist()  # type: ignore[arg-type]
            super().update(zip(super().keys(), values, strict=True))

    def __getitem__(self, name: str) -> float:
        self._read()
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a loss, or the default if there is none of that name."""
        self._read()
        return super().get(name, default)

    def values(self) -> Any:
        """Returns the losses."""
        self._read()
        return super().values()

    def items(self) -> Any:
        """Returns the losses with their names."""
        self._read()
        return super().items()

    def __repr__(self) -> str:
        self._read()
        return super().__repr__()

    def __eq__(self, other: object) -> bool:
        self._read()
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # as of any dict

    def __reduce__(self) -> Any:
        return dict, (dict(self.items()),)


def total_over_ranks(
    device: Device, samples: Number, tokens: Number, duration: timedelta
) -> tuple[int, int, timedelta]:
    """Returns the samples and tokens of a batch over all ranks, and rank 0's time for it.

    Raises:
        ValueError: if the sum is not whole (a rank may hold a fraction of a sequence).
    """
    if dist.get_world_size() > 1:
        seconds = duration.total_seconds() if dist.get_global_rank() == 0 else 0.0
        packed = torch.tensor([samples, tokens, seconds], dtype=torch.float64)
        packed = device.tensor_to_device(packed)
        dist.all_reduce(packed, "SUM")
        samples, tokens, seconds = packed.tolist()
        duration = timedelta(seconds=seconds)
    return whole_count(samples), whole_count(tokens), duration


class Clock:
    """Times batches, and brings losses to the host with rank 0's clock, in one all-reduce."""

    def __init__(self, state: State):
        self.state = state
        self.world_size = dist.get_world_size()
        self._started = time.perf_counter()

    def restart(self) -> None:
        """Starts timing the next batch (after an evaluation, whose time is not the batch's)."""
        self._started = time.perf_counter()

    def batch_ended(self, losses: Losses) -> timedelta:
        """Averages losses over ranks into ``state.total_loss_dict``; returns rank 0's time."""
        now = time.perf_counter()
        elapsed, self._started = now - self._started, now
        named = {f"loss/train/{name}": value for name, value in losses.parts.items()}
        if self.world_size == 1:
            self.state.total_loss_dict = LazyLosses(named)
            return timedelta(seconds=elapsed)
        seconds = torch.tensor(elapsed if dist.get_global_rank() == 0 else 0.0)
        packed = torch.stack([self._on_device(value) for value in [*named.values(), seconds]])
        dist.all_reduce(packed, "SUM")
        *values, elapsed = packed.tolist()
        values = [value / self.world_size for value in values]
        self.state.total_loss_dict = dict(zip(named, values, strict=True))
        return timedelta(seconds=elapsed)

    def _on_device(self, value: torch.Tensor) -> torch.Tensor:
        return self.state.device.tensor_to_device(value.float())
