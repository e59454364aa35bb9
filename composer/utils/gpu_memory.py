"""What CUDA's allocator says of itself, in gigabytes: read by the monitors and the profiler."""

import math

import torch

__all__ = ["DEFAULT_MEMORY_KEYS", "get_cuda_memory_report", "to_gigabytes"]

DEFAULT_MEMORY_KEYS = {
    "allocated_bytes.all.current": "current_allocated_mem",
    "active_bytes.all.current": "current_active_mem",
    "inactive_split_bytes.all.current": "current_inactive_mem",
    "reserved_bytes.all.current": "current_reserved_mem",
    "allocated_bytes.all.peak": "peak_allocated_mem",
    "active_bytes.all.peak": "peak_active_mem",
    "inactive_split_bytes.all.peak": "peak_inactive_mem",
    "reserved_bytes.all.peak": "peak_reserved_mem",
    "num_alloc_retries": "alloc_retries",
}


def get_cuda_memory_report(memory_keys: dict[str, str] | None = None) -> dict[str, float]:
    """Returns statistics of the CUDA allocator by the names to log them under.

    Args:
        memory_keys: Names of ``torch.cuda.memory_stats`` and what to call them; None takes
            ``DEFAULT_MEMORY_KEYS``.
    """
    statistics = torch.cuda.memory_stats()
    report: dict[str, float] = {}
    for key, name in (memory_keys or DEFAULT_MEMORY_KEYS).items():
        if key not in statistics:
            continue
        value = statistics[key]
        if "bytes" in key:
            report[name.replace("bytes", "gigabytes")] = to_gigabytes(value)
        else:
            report[name] = value
    return report


def to_gigabytes(value: float) -> float:
    """Returns bytes as gigabytes (1e9 bytes), rounded to five significant digits."""
    gigabytes = value / 1e9
    if gigabytes == 0:
        return 0.0
    return round(gigabytes, 4 - math.floor(math.log10(abs(gigabytes))))
