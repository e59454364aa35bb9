"""Memory of the device, or of the process where there is no accelerator."""

import warnings
from typing import Any

import torch

from composer.callbacks._model_device import get_model_device
from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils import dist
from composer.utils.gpu_memory import get_cuda_memory_report, to_gigabytes

_REDUCE_OPERATIONS = {"mean": "SUM", "avg": "SUM", "sum": "SUM", "min": "MIN", "max": "MAX"}


class MemoryMonitor(Callback):
    """Logs the memory in use after every batch, in gigabytes (1e9 bytes).

    | key | logged |
    | --- | --- |
    | ``memory/<name>`` | on CUDA: the statistics of ``memory_keys`` |
    | ``memory/current_resident_mem`` | elsewhere: the process's own memory |
    | ``memory/peak_resident_mem`` | elsewhere: the most that the process ever had |

    Args:
        memory_keys: Names of ``torch.cuda.memory_stats`` and the names to log them under; None
            takes current and peak of allocated, active, inactive and reserved memory, and the
            number of allocation retries.
        dist_aggregate_batch_interval: Every so many batches, also log ``<name>_avg``,
            ``<name>_min`` and ``<name>_max`` over the ranks.
    """

    def __init__(
        self,
        memory_keys: dict[str, str] | None = None,
        dist_aggregate_batch_interval: int | None = None,
    ) -> None:
        if dist_aggregate_batch_interval is not None and dist_aggregate_batch_interval < 1:
            raise ValueError(
                f"dist_aggregate_batch_interval={dist_aggregate_batch_interval} must be at least "
                "one batch; leave it out to log no values over the ranks."
            )
        self.memory_keys = memory_keys
        self.dist_aggregate_batch_interval = dist_aggregate_batch_interval

    def init(self, state: State, logger: Logger) -> None:
        """Warns that only the process's memory can be logged where there is no CUDA device."""
        device_type = get_model_device(state).type
        if device_type not in ("cuda", "meta"):
            warnings.warn(
                "The memory monitor only works on CUDA devices, but the model is on "
                f"{device_type}: it logs the memory of the process instead "
                "(memory/current_resident_mem, memory/peak_resident_mem).",
                stacklevel=2,
            )

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Logs the memory in use."""
        device = get_model_device(state)
        if device.type == "cuda":
            report = get_cuda_memory_report(self.memory_keys)
        else:
            report = _get_process_memory_report()
        interval = self.dist_aggregate_batch_interval
        if interval is not None and state.timestamp.batch.value % interval == 0:
            report |= _aggregate_over_ranks(report, device)
        logger.log_metrics({f"memory/{name}": value for name, value in report.items()})


def _get_process_memory_report() -> dict[str, float]:
    import psutil  # here, because importing it costs 10 ms that only users of this class should pay

    current = psutil.Process().memory_info()
    return {
        "current_resident_mem": to_gigabytes(current.rss),
        "peak_resident_mem": to_gigabytes(_get_peak_resident_bytes(current)),
    }


def _get_peak_resident_bytes(current: Any) -> int:
    """The largest resident size that the process ever had (the operating system keeps it)."""
    if hasattr(current, "peak_wset"):  # Windows
        return current.peak_wset
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform != "darwin":
        peak *= 1024  # Linux counts in KiB
    return max(peak, current.rss)  # the kernel brings the peak up to date only now and then


def _aggregate_over_ranks(report: dict[str, float], device: torch.device) -> dict[str, float]:
    aggregated: dict[str, float] = {}
    for name, value in report.items():
        for operation in ("avg", "min", "max"):
            aggregated[f"{name}_{operation}"] = reduce_value(value, device, operation).item()
    return aggregated


def reduce_value(
    value: int | float, model_device: torch.device | str, reduce_op: str = "mean"
) -> torch.Tensor:
    """Reduces a number over all ranks.

    Args:
        value: This rank's number.
        model_device: Where the ranks can exchange tensors.
        reduce_op: ``"mean"`` or ``"avg"``, ``"sum"``, ``"min"`` or ``"max"``.
    """
    if reduce_op not in _REDUCE_OPERATIONS:
        raise ValueError(
            f"reduce_op={reduce_op!r} is unknown; use one of {', '.join(_REDUCE_OPERATIONS)}."
        )
    tensor = torch.tensor(value, dtype=torch.float32, device=model_device)
    dist.all_reduce(tensor, reduce_operation=_REDUCE_OPERATIONS[reduce_op])
    return tensor / dist.get_world_size() if reduce_op in ("mean", "avg") else tensor
