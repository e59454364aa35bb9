"""Where the weights of a model come to life."""

import contextlib
import warnings
from contextlib import AbstractContextManager
from typing import Any

from llmfoundry.layers_registry import ffns_with_megablocks
from llmfoundry.utils.meta_init_context import init_empty_weights

__all__ = ["process_init_device"]

INIT_DEVICES = ("meta", "cpu", "mixed")


def process_init_device(
    model_cfg: dict[str, Any],
    fsdp_config: dict[str, Any] | None = None,
    tp_config: dict[str, Any] | None = None,
) -> AbstractContextManager[Any]:
    """Settles ``init_device`` and returns the context to build the model in.

    ``model_cfg`` and ``fsdp_config`` are changed in place where they have to be.

    Args:
        model_cfg: The model's settings; ``meta`` makes sense only for a sharded model, whose parts
            come to life on their ranks.
        fsdp_config: How the model is sharded, if it is.
        tp_config: How layers are split, if they are.
    """
    context: AbstractContextManager[Any] = contextlib.nullcontext()
    _check_tp(tp_config, model_cfg)
    init_device = model_cfg.get("init_device")
    if init_device is None:
        return context
    if init_device not in INIT_DEVICES:
        raise ValueError(f"model.init_device={init_device!r} must be one of {INIT_DEVICES}.")
    if fsdp_config is None and init_device == "meta":
        warnings.warn(
            "model.init_device: meta only has a meaning for a model that is sharded (fsdp_config, "
            "on more than one rank); the model is built on the CPU.",
            stacklevel=2,
        )
        init_device = model_cfg["init_device"] = "cpu"
    if init_device == "meta":
        # Parameters only: what is computed in a constructor, such as a metric, stays as it is.
        context = init_empty_weights()
    elif init_device == "mixed":
        if fsdp_config is None:
            raise NotImplementedError(
                "model.init_device: mixed has no meaning without fsdp_config on more than one "
                "rank. Use cpu."
            )
        _settle_mixed(fsdp_config)
    if fsdp_config is not None and model_cfg.get("master_weights_dtype") is not None:
        _keep_master_dtype(model_cfg["master_weights_dtype"], fsdp_config)
    return context


def _check_tp(tp_config: dict[str, Any] | None, model_cfg: dict[str, Any]) -> None:
    if tp_config is None:
        return
    missing = [key for key in ("strategy", "tensor_parallel_degree") if key not in tp_config]
    if missing:
        raise ValueError(f"tp_config needs {' and '.join(missing)}.")
    ffn_type = (model_cfg.get("ffn_config") or {}).get("ffn_type")
    if ffn_type is not None and ffn_type in ffns_with_megablocks:
        raise ValueError(
            "Tensor Parallelism is not currently supported for MoE models. Take tp_config out, or "
            f"ffn_config.ffn_type: {ffn_type}; moe_world_size has ranks share experts."
        )


def _settle_mixed(fsdp_config: dict[str, Any]) -> None:
    """Only rank 0 has weights, so the others must be given them."""
    if not fsdp_config.get("sync_module_states", False):
        warnings.warn(
            "model.init_device: mixed needs fsdp_config.sync_module_states: true; it is switched "
            "on.",
            stacklevel=3,
        )
        fsdp_config["sync_module_states"] = True
    fsdp_config.setdefault("load_monolith_rank0_only", True)


LOW_PRECISIONS = ("bf16", "fp16", "float16", "bfloat16", "amp_fp16", "amp_bf16")


def _keep_master_dtype(master_weights_dtype: str, fsdp_config: dict[str, Any]) -> None:
    """Weights that are low precision already must not be cast again when they are gathered."""
    if master_weights_dtype not in LOW_PRECISIONS:
        return
    old = fsdp_config.get("mixed_precision")
    old = old if isinstance(old, dict) else {}
    fsdp_config["mixed_precision"] = {
        "param_dtype": None,
        "reduce_dtype": old.get("reduce_dtype"),
        "buffer_dtype": old.get("buffer_dtype"),
        "keep_low_precision_grads": True,
    }
