"""What a device can do at most, in FLOP/s: a table for accelerators, a measurement for the CPU."""

import functools
import re
import time
import warnings

import torch

from composer.core.precision import Precision
from composer.core.state import State


def _row(fp64: float, fp32: float, tf32: float, half: float, byte: float) -> dict[str, float]:
    """A table row; figures are dense (no structured sparsity), zero means not supported."""
    row = {"fp64": fp64, "fp32": fp32, "tf32": tf32}
    row |= dict.fromkeys(("fp16", "amp_fp16", "bf16", "amp_bf16"), half)
    row |= dict.fromkeys(("fp8", "amp_fp8", "int8"), byte)
    return {name: flops for name, flops in row.items() if flops}


_H100_SXM = _row(67e12, 67e12, 494.5e12, 989.5e12, 1979e12)

GPU_AVAILABLE_FLOPS: dict[str, dict[str, float]] = {
    "b200": _row(37e12, 75e12, 1125e12, 2250e12, 4500e12),
    "h200-sxm": dict(_H100_SXM),
    "h100-sxm": dict(_H100_SXM),
    "h100-pcie": _row(51e12, 51e12, 378e12, 756.5e12, 1513e12),
    "a100": _row(19.5e12, 19.5e12, 156e12, 312e12, 0),
    "l40s": _row(0, 91.6e12, 183e12, 362e12, 733e12),
    "l40": _row(0, 90.5e12, 90.5e12, 181e12, 362e12),
    "l4": _row(0, 30.3e12, 60e12, 121e12, 242e12),
    "a10": _row(0, 31.2e12, 62.5e12, 125e12, 0),
    "v100-sxm": {"fp64": 7.8e12, "fp32": 15.7e12, "fp16": 125e12, "amp_fp16": 125e12},
    "v100-pcie": {"fp64": 7e12, "fp32": 14e12, "fp16": 112e12, "amp_fp16": 112e12},
    "v100s-pcie": {"fp64": 8.2e12, "fp32": 16.4e12, "fp16": 130e12, "amp_fp16": 130e12},
    "t4": {"fp32": 8.1e12, "fp16": 65e12, "amp_fp16": 65e12, "int8": 130e12, "int4": 260e12},
    "trn1": _row(0, 23.75e12, 23.75e12, 95e12, 190e12),
}
"""Peak FLOP/s by accelerator and by the value of the run's ``Precision``."""

# Searched in this order in the lower-case device name; a digit must not follow (A100 is no A1000).
_DEVICE_NAME_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"b200(?!\d)", "b200"),
    (r"h200(?!\d)", "h200-sxm"),
    (r"h100.*hbm3", "h100-sxm"),
    (r"h100.*(pcie|hbm2e)", "h100-pcie"),
    (r"a100(?!\d)", "a100"),
    (r"l40s", "l40s"),
    (r"l40(?!\d)", "l40"),
    (r"l4(?!\d)", "l4"),
    (r"a10(?!\d)", "a10"),
    (r"v100-sxm", "v100-sxm"),
    (r"v100-pcie", "v100-pcie"),
    (r"v100s-pcie", "v100s-pcie"),
    (r"t4(?!\d)", "t4"),
)

MATMUL_SIZE = 1024
MEASURE_SECONDS = 0.2


def get_gpu_flops_available(state: State) -> float:
    """Returns the accelerator's peak FLOP/s at the run's precision; 0 without one.

    An accelerator or precision that the table does not know gives a warning and 0.
    """
    if state.device.name == "neuron":
        return GPU_AVAILABLE_FLOPS["trn1"].get(state.precision.value, 0)
    if not torch.cuda.is_available():
        return 0
    device_name = torch.cuda.get_device_name()
    lowered = device_name.lower()
    for pattern, row in _DEVICE_NAME_PATTERNS:
        if re.search(pattern, lowered):
            flops = GPU_AVAILABLE_FLOPS[row].get(_precision_row(state), 0)
            if flops:
                return flops
            break
    warnings.warn(
        f"The peak FLOP/s of {device_name!r} at precision {state.precision.value!r} is not known, "
        "so MFU is not logged. Give SpeedMonitor gpu_flops_available (FLOP/s) to have it.",
        stacklevel=2,
    )
    return 0


def _precision_row(state: State) -> str:
    """The column of the table; fp32 products that TensorFloat may compute count as tf32."""
    if state.precision == Precision.FP32 and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return state.precision.value


def get_cpu_flops_available(state: State) -> float:
    """Returns the FLOP/s that a square matrix product reaches here, at the run's precision.

    Measured once a process, in about 0.2 s, with the threads that torch uses: the best of several
    products of 1024 x 1024 matrices. It is a peak to compare with, as the table's figures are for
    accelerators, not a promise; another busy process makes it too small.
    """
    dtype = torch.bfloat16 if state.precision == Precision.AMP_BF16 else torch.float32
    return _measure_matmul_flops(dtype, torch.get_num_threads())


@functools.cache
def _measure_matmul_flops(dtype: torch.dtype, num_threads: int) -> float:
    # Constant matrices: no random number may be drawn, or a resumed run would differ.
    left = torch.full((MATMUL_SIZE, MATMUL_SIZE), 0.5, dtype=dtype)
    right = torch.full((MATMUL_SIZE, MATMUL_SIZE), 0.25, dtype=dtype)
    out = torch.empty_like(left)
    best = float("inf")
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        torch.mm(left, right, out=out)  # the first product also sets up threads and buffers
        deadline = time.perf_counter() + MEASURE_SECONDS
        while True:
            start = time.perf_counter()
            torch.mm(left, right, out=out)
            end = time.perf_counter()
            best = min(best, end - start)
            if end > deadline:
                return 2 * MATMUL_SIZE**3 / best
