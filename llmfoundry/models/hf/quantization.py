"""A frozen base model's weights in few bits, under adapters (QLoRA, arXiv 2305.14314)."""

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["QUANTIZATION_KEYS", "freeze_few_bits", "quantization_config"]

QUANTIZATION_KEYS = frozenset({"backend", "weights", "double_quant", "compute_dtype"})

WEIGHTS = {"bitsandbytes": ("int8", "nf4", "fp4"), "torchao": ("int8",)}
"""What weights may be with each package. peft has no adapters for torchao's int4 tensors."""

PIP = {
    "bitsandbytes": 'pip install "bitsandbytes>=0.48" accelerate',
    "torchao": 'pip install "torchao>=0.18"',
}

COMPUTE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def quantization_config(
    settings: Mapping[str, Any] | None = None, load_in_8bit: bool = False
) -> Any | None:
    """Returns the ``quantization_config`` of transformers' ``from_pretrained``; None for none.

    Args:
        settings: A recipe's ``quantization``: ``backend`` (bitsandbytes or torchao) and ``weights``
            (int8; with bitsandbytes also nf4 and fp4). Of 4-bit weights also ``double_quant``, by
            default true (their scales are quantised too), and ``compute_dtype``, fp32 (the
            default), bf16 or fp16, of the products.
        load_in_8bit: int8 weights of bitsandbytes.

    Raises:
        ImportError: The package is not installed.
        ValueError: A key or value is unknown, or has no effect.
    """
    if load_in_8bit:
        if settings is not None:
            raise ValueError(
                "load_in_8bit and quantization are two answers to one question; leave one out."
            )
        settings = {"backend": "bitsandbytes", "weights": "int8"}
    if settings is None:
        return None
    backend, weights = str(settings.get("backend")), str(settings.get("weights"))
    if weights not in WEIGHTS.get(backend, ()):
        may_be = "; ".join(f"{name}: {', '.join(kinds)}" for name, kinds in WEIGHTS.items())
        raise ValueError(
            f"quantization needs a backend and its weights, not {backend!r} and {weights!r}: "
            f"{may_be}."
        )
    known = {"backend", "weights"}
    if weights in ("nf4", "fp4"):
        known |= {"double_quant", "compute_dtype"}
    if unknown := sorted(settings.keys() - known):
        raise ValueError(
            f"quantization has {unknown}, which {backend}'s {weights} does not have; it has "
            f"{sorted(known)}."
        )
    if settings.get("compute_dtype", "fp32") not in COMPUTE_DTYPES:
        raise ValueError(
            f"quantization.compute_dtype={settings['compute_dtype']!r} must be one of "
            f"{sorted(COMPUTE_DTYPES)}."
        )
    if importlib.util.find_spec(backend) is None:
        raise ImportError(
            f"quantization.backend={backend} needs a package that is not installed: {PIP[backend]}"
        )
    return _of_transformers(backend, weights, settings)


def freeze_few_bits(model: torch.nn.Module) -> None:
    """Makes a quantised model, in place, a base that adapters can be trained on."""
    model.requires_grad_(False)
    for layer in model.modules():
        # On some CPUs bitsandbytes packs 4-bit weights anew at the first evaluation, for a product
        # through which no gradient passes: adapters below would not learn from then on.
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


def _of_transformers(backend: str, weights: str, settings: Mapping[str, Any]) -> Any:
    import transformers

    if backend == "torchao":
        quantization: Any = importlib.import_module("torchao.quantization")
        return transformers.TorchAoConfig(quantization.Int8WeightOnlyConfig(version=2))
    if weights == "int8":
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=weights,
        bnb_4bit_use_double_quant=settings.get("double_quant", True),
        bnb_4bit_compute_dtype=COMPUTE_DTYPES[settings.get("compute_dtype", "fp32")],
    )
