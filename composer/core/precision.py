"""Numeric precisions, and the autocast context of each on each device."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from composer.devices.device import Device
from composer.utils.string_enum import StringEnum

te_installed = importlib.util.find_spec("transformer_engine") is not None
"""Whether TransformerEngine, which FP8 needs, is installed."""


class Precision(StringEnum):
    """The precisions in which a model can be trained."""

    FP32 = "fp32"
    AMP_FP16 = "amp_fp16"
    AMP_BF16 = "amp_bf16"
    AMP_FP8 = "amp_fp8"


_NAMES_OF_CUDA_ONLY = (Precision.AMP_FP16, Precision.AMP_FP8)


def validate_precision(precision: Precision, device: Device) -> None:
    """Refuses a precision that the device cannot train in.

    bfloat16 works on the CPU; float16 does not, because its gradients need a scaler and most CPUs
    compute it in software.

    Raises:
        ValueError: If the device cannot.
    """
    if device.name == "cpu" and precision in _NAMES_OF_CUDA_ONLY:
        raise ValueError(
            f"Precision {precision.value!r} is not supported for CPU training. Use 'amp_bf16' or "
            "'fp32' on the CPU, or train on a GPU"
        )


def get_precision_context(
    precision: str | Precision,
    precision_config: dict[str, Any] | None = None,
    fp8_autocast_enabled: bool = True,
    device_type: str | None = None,
) -> AbstractContextManager[Any]:
    """Returns the context that runs a block in a precision.

    Args:
        precision: A `Precision` or its value.
        precision_config: Arguments of TransformerEngine's ``DelayedScaling``, for ``amp_fp8``.
        fp8_autocast_enabled: Whether FP8 itself is on; without it ``amp_fp8`` is bfloat16.
        device_type: torch's name of the device that computes: "cuda", "cpu" ...; "cuda" if torch
            sees a GPU, else "cpu", if None.

    Raises:
        ValueError: If float16 is asked for on the CPU.
        ImportError: If FP8 is asked for without TransformerEngine.
        RuntimeError: If FP8 is asked for on a GPU without it.
    """
    precision = Precision(precision)
    if device_type is None:
        device_type = "cuda" if torch.cuda.is_available() else "cpu"
    if precision is Precision.FP32:
        # An autocast that somebody else switched on must not leak into fp32.
        if torch.is_autocast_enabled(device_type):
            return torch.autocast(device_type, enabled=False)
        return nullcontext()
    if precision is Precision.AMP_FP16:
        if device_type == "cpu":
            raise ValueError(
                "Precision 'amp_fp16' is not supported for CPU training. Use 'amp_bf16' or 'fp32'"
            )
        return torch.autocast(device_type, torch.float16)
    if precision is Precision.AMP_BF16:
        return torch.autocast(device_type, torch.bfloat16)
    return _fp8_context(precision_config, fp8_autocast_enabled, device_type)


@contextmanager
def _fp8_context(
    precision_config: dict[str, Any] | None, enabled: bool, device_type: str
) -> Iterator[None]:
    if not te_installed:
        raise ImportError(
            "AMP_FP8 precision is used but TransformerEngine is not installed. Install "
            "transformer_engine, or use 'amp_bf16'"
        )
    if device_type != "cuda" or torch.cuda.get_device_capability() < (8, 9):
        raise RuntimeError(
            "AMP_FP8 precision is used but current device does not support it: it needs an NVIDIA "
            "GPU of compute capability 8.9 or above. Use 'amp_bf16'"
        )
    import transformer_engine.pytorch as te  # pyright: ignore[reportMissingImports]  # optional
    from transformer_engine.common.recipe import (  # pyright: ignore[reportMissingImports]
        DelayedScaling,
        Format,
    )

    settings = precision_config or {
        "fp8_format": Format.HYBRID,
        "amax_history_len": 16,
        "amax_compute_algo": "max",
    }
    # TransformerEngine keeps everything outside of its own layers to the outer autocast.
    with torch.autocast("cuda", torch.bfloat16):
        with te.fp8_autocast(enabled=enabled, fp8_recipe=DelayedScaling(**settings)):
            yield
