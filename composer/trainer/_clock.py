"""Wall-clock time and the one place where training reads numbers from the device."""

import time
from datetime import timedelta

import torch

from composer.core.state import State
from composer.trainer._losses import Losses
from composer.utils import dist


class Clock:
    """Times batches, and brings losses to the host with rank 0's clock, in one all-reduce."""

    def __init__(self, state: State):
        self.state = state
        self._started = time.perf_counter()

    def restart(self) -> None:
        """Starts timing the next batch (after an evaluation, whose time is not the batch's)."""
        self._started = time.perf_counter()

    def batch_ended(self, losses: Losses) -> timedelta:
        """Averages losses over ranks into ``state.total_loss_dict``; returns rank 0's time."""
        now = time.perf_counter()
        elapsed, self._started = now - self._started, now
        tensors = list(losses.parts.values())
        if dist.get_world_size() == 1:
            values = torch.stack(tensors).tolist() if tensors else []
        else:
            seconds = torch.tensor(elapsed if dist.get_global_rank() == 0 else 0.0)
            packed = torch.stack([self._on_device(value) for value in [*tensors, seconds]])
            dist.all_reduce(packed, "SUM")
            *values, elapsed = packed.tolist()
            values = [value / dist.get_world_size() for value in values]
        self.state.total_loss_dict = {
            f"loss/train/{name}": value for name, value in zip(losses.parts, values, strict=True)
        }
        return timedelta(seconds=elapsed)

    def _on_device(self, value: torch.Tensor) -> torch.Tensor:
        return self.state.device.tensor_to_device(value.float())
