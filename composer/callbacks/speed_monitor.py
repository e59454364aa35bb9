"""Throughput, MFU and wall-clock time."""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from composer.callbacks._time_units import get_seconds_per_unit
from composer.callbacks.peak_flops import (
    GPU_AVAILABLE_FLOPS,
    get_cpu_flops_available,
    get_gpu_flops_available,
)
from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils import dist

__all__ = ["GPU_AVAILABLE_FLOPS", "SpeedMonitor", "get_gpu_flops_available"]


class SpeedMonitor(Callback):
    """Logs throughput over a moving window of batches, MFU, and the time spent.

    Time in evaluation and the time before a resume are left out of the rates. Nothing under
    ``throughput/`` is logged until ``window_size`` + 1 batches are done.

    | key | logged |
    | --- | --- |
    | ``throughput/batches_per_sec``, ``samples_per_sec``, ``tokens_per_sec`` | over all devices |
    | ``throughput/device/...`` | the same, divided by the number of devices |
    | ``throughput/[device/]flops_per_sec`` | if the model has ``flops_per_batch(batch)`` |
    | ``throughput/device/mfu`` | FLOP/s of a device divided by its peak |
    | ``time/train``, ``time/val``, ``time/total`` | in ``time_unit`` |

    Args:
        window_size: How many batches the rates are taken over.
        gpu_flops_available: Peak FLOP/s of one device; None looks it up for accelerators and
            measures a matrix product on the CPU (once, about 0.2 s, only if the model counts its
            FLOPs). 0 leaves MFU out.
        time_unit: ``"seconds"``, ``"minutes"``, ``"hours"`` or ``"days"``.
    """

    def __init__(
        self,
        window_size: int = 100,
        gpu_flops_available: float | None = None,
        time_unit: str = "hours",
    ) -> None:
        if window_size < 1:
            raise ValueError(f"window_size={window_size!r} must be at least one batch.")
        self.divider = get_seconds_per_unit(time_unit)
        self.history_samples: deque[int] = deque(maxlen=window_size + 1)
        self.history_tokens: deque[int] = deque(maxlen=window_size + 1)
        self.history_wct: deque[float] = deque(maxlen=window_size + 1)
        self.history_flops: deque[float] = deque(maxlen=window_size + 1)
        self.gpu_flops_available = gpu_flops_available
        self.total_eval_wct = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Returns the seconds spent in evaluation so far."""
        return {"total_eval_wct": self.total_eval_wct}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues counting the seconds spent in evaluation."""
        self.total_eval_wct = state["total_eval_wct"]

    def fit_start(self, state: State, logger: Logger) -> None:
        """Finds the device's peak, outside of any timed batch, if it will be needed."""
        if self.gpu_flops_available is None and _flops_function(state.model) is not None:
            find_peak = (
                get_cpu_flops_available if state.device.name == "cpu" else get_gpu_flops_available
            )
            self.gpu_flops_available = find_peak(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Logs the rates over the window and the time spent."""
        timestamp = state.timestamp
        if self.history_samples and timestamp.sample.value < self.history_samples[-1]:
            for history in self._histories():  # time was reset: rates over the seam mean nothing
                history.clear()
        self.history_samples.append(timestamp.sample.value)
        self.history_tokens.append(timestamp.token.value)
        self.history_wct.append(timestamp.total_wct.total_seconds())
        metrics: dict[str, float] = {}
        window_is_full = len(self.history_wct) == self.history_wct.maxlen
        seconds = self.history_wct[-1] - self.history_wct[0]
        if window_is_full and seconds > 0:
            metrics |= self._rates(seconds)
        count_flops = _flops_function(state.model)
        if count_flops is not None:
            flops = torch.tensor(float(count_flops(state.batch)), dtype=torch.float64)
            self.history_flops.append(self._sum_over_ranks(flops, state))
            if window_is_full and seconds > 0:
                metrics |= self._flops_rates(seconds)
        train_seconds = self.history_wct[-1]
        metrics["time/train"] = train_seconds / self.divider
        metrics["time/val"] = self.total_eval_wct / self.divider
        metrics["time/total"] = (train_seconds + self.total_eval_wct) / self.divider
        logger.log_metrics(metrics)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Adds up the time of an evaluation."""
        self.total_eval_wct += state.eval_timestamp.total_wct.total_seconds()

    def _histories(self) -> tuple[deque[Any], ...]:
        return self.history_samples, self.history_tokens, self.history_wct, self.history_flops

    def _rates(self, seconds: float) -> dict[str, float]:
        counts = {
            "batches": len(self.history_samples) - 1,
            "samples": self.history_samples[-1] - self.history_samples[0],
            "tokens": self.history_tokens[-1] - self.history_tokens[0],
        }
        if counts["tokens"] == 0:
            del counts["tokens"]
        return self._over_all_and_per_device(
            {f"{name}_per_sec": count / seconds for name, count in counts.items()}
        )

    def _flops_rates(self, seconds: float) -> dict[str, float]:
        # The first entry's FLOPs were spent before the first entry's time was taken.
        flops = sum(self.history_flops) - self.history_flops[0]
        metrics = self._over_all_and_per_device({"flops_per_sec": flops / seconds})
        if self.gpu_flops_available:
            metrics["throughput/device/mfu"] = (
                metrics["throughput/device/flops_per_sec"] / self.gpu_flops_available
            )
        return metrics

    @staticmethod
    def _over_all_and_per_device(rates: dict[str, float]) -> dict[str, float]:
        world_size = dist.get_world_size()
        return {f"throughput/{name}": rate for name, rate in rates.items()} | {
            f"throughput/device/{name}": rate / world_size for name, rate in rates.items()
        }

    @staticmethod
    def _sum_over_ranks(flops: torch.Tensor, state: State) -> float:
        if dist.get_world_size() == 1:
            return flops.item()
        flops = state.device.tensor_to_device(flops)
        dist.all_reduce(flops, reduce_operation="SUM")
        return flops.item()


def _flops_function(model: torch.nn.Module) -> Callable[[Any], Any] | None:
    """The model's own count of FLOPs for a batch, or None; looks inside a DDP wrapper."""
    inner = getattr(model, "module", None)
    for candidate in (model, inner):
        count_flops: Any = getattr(candidate, "flops_per_batch", None)
        if count_flops is None:
            continue
        if not callable(count_flops):
            raise TypeError(
                f"{type(candidate).__name__}.flops_per_batch must be a method that takes a batch "
                f"and returns its FLOPs, not {type(count_flops).__name__}."
            )
        return count_flops
    return None
