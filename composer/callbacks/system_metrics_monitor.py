"""Load of processors, memory, disk and network on every rank."""

import importlib.util
import os
from typing import Any

import torch

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils import dist
from composer.utils.import_helpers import MissingConditionalImportError

_GPU_KEYS = ("gpu_percentage", "memory_percentage", "gpu_temperature_C", "gpu_power_usage_W")


class SystemMetricsMonitor(Callback):
    """Logs the load of the machines at the start of every batch.

    | key | logged |
    | --- | --- |
    | ``min_<key>_rank_<r>``, ``max_<key>_rank_<r>`` | the GPU with the least and the most of
    ``gpu_percentage``, ``memory_percentage``, ``gpu_temperature_C``, ``gpu_power_usage_W`` |
    | ``<key>_rank_<r>`` | with ``log_all_data``: every GPU |
    | ``cpu_percentage``, ``cpu_memory_*``, ``disk_memory_*``, ``network_*`` | the machine of the
    last rank, as psutil names it |

    In evaluation and prediction each rank tells of itself only: ranks may hold different numbers
    of batches there.

    Args:
        log_all_data: Log every GPU, not only the extremes.

    Raises:
        MissingConditionalImportError: If there is a GPU and no ``pynvml`` to ask it.
    """

    def __init__(self, log_all_data: bool = False) -> None:
        self.gpu_available = torch.cuda.is_available()
        if self.gpu_available and importlib.util.find_spec("pynvml") is None:
            raise MissingConditionalImportError("gpu", "nvidia-ml-py")
        self.log_all_data = log_all_data

    def batch_start(self, state: State, logger: Logger) -> None:
        """Logs the load of all ranks."""
        self._log(dist.all_gather_object(self.compute_system_metrics()), state, logger)

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        """Logs the load of this rank."""
        self._log([self.compute_system_metrics()], state, logger)

    def predict_batch_start(self, state: State, logger: Logger) -> None:
        """Logs the load of this rank."""
        self._log([self.compute_system_metrics()], state, logger)

    def compute_system_metrics(self) -> dict[str, float]:
        """Returns the load of this rank's machine and GPU."""
        import psutil  # here, because importing it costs 10 ms that only its users should pay

        metrics: dict[str, float] = {}
        if self.gpu_available:
            # torch asks NVML, and knows which of the machine's GPUs this process sees.
            values = (
                torch.cuda.utilization(),
                torch.cuda.memory_usage(),
                torch.cuda.temperature(),
                torch.cuda.power_draw() / 1000,
            )
            metrics.update(zip(_GPU_KEYS, values, strict=True))
        metrics["cpu_percentage"] = psutil.cpu_percent()
        for name, report in (
            ("cpu_memory", psutil.virtual_memory()),
            ("disk_memory", psutil.disk_usage(os.sep)),
            ("network", psutil.net_io_counters()),
        ):
            if report is not None:  # a machine may have no network
                metrics.update({f"{name}_{key}": v for key, v in report._asdict().items()})
        return metrics

    def compute_gpu_min_max_metrics(
        self, all_metrics: list[dict[str, float]], state: State
    ) -> dict[str, float]:
        """Returns the least and the largest value of each key of the GPUs, with its rank."""
        extremes: dict[str, float] = {}
        for key in _GPU_KEYS:
            by_rank = {rank: of[key] for rank, of in enumerate(all_metrics) if key in of}
            for name, choose in (("min", min), ("max", max)):
                if by_rank:
                    rank = choose(by_rank, key=by_rank.__getitem__)
                    extremes[f"{name}_{key}_rank_{rank}"] = by_rank[rank]
        return extremes

    def _log(self, all_metrics: list[dict[str, float]], state: State, logger: Logger) -> None:
        news: dict[str, Any] = {}
        for rank, of_rank in enumerate(all_metrics):
            for key, value in of_rank.items():
                if key not in _GPU_KEYS:
                    news[key] = value
                elif self.log_all_data:
                    news[f"{key}_rank_{rank}"] = value
        if not self.log_all_data:
            news.update(self.compute_gpu_min_max_metrics(all_metrics, state))
        logger.log_metrics(news)
