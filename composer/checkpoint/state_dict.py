"""The parts of a run as dictionaries: weights, optimizer, how they came to be, and the rest."""

import fnmatch
import platform
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from composer.core._state_dict import dataset_position, save_by_class
from composer.core.model_state import get_model_state, get_optimizer_state
from composer.core.protocols import DescribesItself
from composer.core.state import State
from composer.core.timestamp import Timestamp
from composer.devices.device import Device
from composer.utils import reproducibility
from composer.utils.collect_env import get_composer_env_dict
from composer.utils.iter_helpers import ensure_tuple
from composer.utils.misc import STR_TO_DTYPE, is_model_fsdp, unwrap_model

__all__ = [
    "KeyFilter",
    "cast_to",
    "filter_keys",
    "get_dataset_state_dict",
    "get_metadata_state_dict",
    "get_model_state_dict",
    "get_optim_state_dict",
    "get_resumption_state_dict",
]

KeyFilter = str | Sequence[str] | None


def _is_model_fsdp(model: torch.nn.Module) -> bool:
    """Tells whether any part of the model is sharded."""
    return any(is_model_fsdp(module) for module in model.modules())


def get_model_state_dict(
    model: torch.nn.Module,
    sharded_state_dict: bool = False,
    precision: str | torch.dtype = "fp32",
    include_keys: KeyFilter = None,
    ignore_keys: KeyFilter = None,
    cpu_offload: bool | None = None,
) -> dict[str, Any]:
    """Returns the weights and buffers by name. All ranks call it.

    Args:
        model: The model, with or without wrappers.
        sharded_state_dict: Leave sharded weights sharded. Otherwise they are gathered, and only
            rank 0 gets them if they go to the CPU.
        precision: What floating-point weights become: ``fp32``, ``fp16``, ``bf16`` or a dtype.
        include_keys: Shell-style patterns of the names that are wanted; None wants all.
        ignore_keys: Patterns of the names that are not.
        cpu_offload: Copy the weights to the CPU; by default if they were gathered.

    Raises:
        ValueError: If both kinds of patterns are given, or the model is not sharded but
            ``sharded_state_dict`` is on.
    """
    is_sharded = _check_sharding(model, sharded_state_dict, include_keys, ignore_keys)
    if cpu_offload is None:
        cpu_offload = is_sharded and not sharded_state_dict
    weights = get_model_state(model, full=not sharded_state_dict, cpu_offload=cpu_offload)
    weights = filter_keys(weights, include_keys, ignore_keys)
    return {name: cast_to(value, precision) for name, value in weights.items()}


def get_optim_state_dict(
    model: torch.nn.Module,
    optimizer: Optimizer,
    sharded_state_dict: bool = False,
    precision: str | torch.dtype = "fp32",
    include_keys: KeyFilter = None,
    ignore_keys: KeyFilter = None,
    cpu_offload: bool | None = None,
) -> dict[str, Any]:
    """Returns the optimizer's state, by parameter name, and its groups. All ranks call it.

    Args:
        model: The model whose parameters it optimizes.
        optimizer: The optimizer.
        sharded_state_dict: As for :func:`get_model_state_dict`.
        precision: What moments are cast to. Counts of steps stay as they are.
        include_keys: Must be None: moments without their parameters' groups cannot be loaded.
        ignore_keys: Must be None.
        cpu_offload: As for :func:`get_model_state_dict`.

    Raises:
        ValueError: As for :func:`get_model_state_dict`.
        NotImplementedError: If patterns are given.
    """
    is_sharded = _check_sharding(model, sharded_state_dict, include_keys, ignore_keys)
    if include_keys is not None or ignore_keys is not None:
        raise NotImplementedError(
            "include_keys and ignore_keys pick weights; an optimizer's state is saved as a whole."
        )
    if cpu_offload is None:
        cpu_offload = is_sharded and not sharded_state_dict
    state = get_optimizer_state(
        model, optimizer, full=not sharded_state_dict, cpu_offload=cpu_offload
    )
    for moments in state.get("state", {}).values():
        for key, value in moments.items():
            moments[key] = value if key == "step" else cast_to(value, precision)
    return state


def _check_sharding(
    model: torch.nn.Module, sharded: bool, include_keys: KeyFilter, ignore_keys: KeyFilter
) -> bool:
    """Returns whether the model is sharded, after refusing what does not go together."""
    if include_keys is not None and ignore_keys is not None:
        raise ValueError(
            f"Both include_keys={include_keys!r} and ignore_keys={ignore_keys!r} are given; choose "
            "one of them."
        )
    is_sharded = _is_model_fsdp(model)
    if sharded and not is_sharded:
        raise ValueError(
            "sharded_state_dict=True needs a model that is sharded (FSDP), and "
            f"{type(model).__name__} is not."
        )
    return is_sharded


def filter_keys(
    state: dict[str, Any], include_keys: KeyFilter = None, ignore_keys: KeyFilter = None
) -> dict[str, Any]:
    """Returns the entries whose names fit a pattern of the first, or none of the second."""
    wanted = ["*"] if include_keys is None else ensure_tuple(include_keys)
    unwanted = ensure_tuple(ignore_keys)
    return {
        name: value
        for name, value in state.items()
        if _fits_any(name, wanted) and not _fits_any(name, unwanted)
    }


def _fits_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def cast_to(value: Any, precision: str | torch.dtype) -> Any:
    """Returns a floating-point tensor in a precision, and anything else as it is."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    if isinstance(precision, str) and precision not in STR_TO_DTYPE:
        raise ValueError(
            f"precision={precision!r} must be a dtype or one of {', '.join(STR_TO_DTYPE)}."
        )
    return value.to(STR_TO_DTYPE[precision] if isinstance(precision, str) else precision)


def get_metadata_state_dict(
    model: torch.nn.Module | None = None,
    sharded_state_dict: bool | None = None,
    precision: str | torch.dtype | None = None,
    device: Device | None = None,
    device_train_microbatch_size: int | float | None = None,
) -> dict[str, Any]:
    """Returns, in plain values, what a reader of a checkpoint may want to know of its making.

    Args:
        model: Whose name and, of a Hugging Face model, configuration and tokenizer are told.
        sharded_state_dict: Whether the checkpoint is sharded.
        precision: The precision of the weights in it, by default ``fp32``.
        device: The device of the run.
        device_train_microbatch_size: The run's.
    """
    metadata: dict[str, Any] = {
        **get_composer_env_dict(),
        "torch_version": str(torch.__version__),
        "python_version": platform.python_version(),
    }
    if sharded_state_dict is not None:
        metadata["sharded_state_dict"] = sharded_state_dict
    if model is not None:
        plain = unwrap_model(model)
        if isinstance(plain, DescribesItself):
            metadata["huggingface"] = plain.get_metadata()
            plain = getattr(plain, "model", plain)
        metadata["model_name"] = type(plain).__name__
    if device is not None:
        metadata["dist_backend"] = device.dist_backend
    if device_train_microbatch_size is not None:
        metadata["device_train_microbatch_size"] = device_train_microbatch_size
    names = {dtype: name for name, dtype in STR_TO_DTYPE.items()}
    if isinstance(precision, torch.dtype):
        precision = names.get(precision, str(precision))
    metadata["precision"] = precision or "fp32"
    return metadata


def get_resumption_state_dict(state: State) -> dict[str, Any]:
    """Returns what a run needs to go on besides weights and optimizer. All ranks call it."""
    parts: dict[str, Any] = {
        "dataset_state": get_dataset_state_dict(state.train_dataloader, state.timestamp),
        "timestamp": state.timestamp.state_dict(),
    }
    if state.schedulers:
        parts["schedulers"] = save_by_class(state.schedulers)
    if state.callbacks:
        parts["callbacks"] = list(save_by_class(state.callbacks).items())
    if state.algorithms:
        parts["algorithms"] = [
            (type(algorithm).__qualname__, algorithm.state_dict()) for algorithm in state.algorithms
        ]
    if state.scaler is not None:
        parts["scaler"] = save_by_class(ensure_tuple(state.scaler))
    return {
        **parts,
        "rank_zero_seed": state.rank_zero_seed,
        "run_name": state.run_name,
        "rng": reproducibility.get_rng_state(),
    }


def get_dataset_state_dict(
    train_dataloader: Iterable[Any] | None, timestamp: Timestamp
) -> dict[str, Any]:
    """Returns where in its training data a run stands, as far as the dataset can tell.

    Args:
        train_dataloader: Its dataset offers ``state_dict(num_samples, from_beginning)``, or not.
        timestamp: The run's.
    """
    return {"train": dataset_position(train_dataloader, timestamp), "eval": {}}
