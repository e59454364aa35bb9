"""The parts of a run read again from the folder that ``composer.checkpoint.save`` wrote."""

import dataclasses
import os
from typing import Any

import torch
from torch.optim import Optimizer

from composer.checkpoint.download import (
    download_file,
    download_folder,
    download_monolithic_checkpoint,
)
from composer.checkpoint.monolithic import torch_load_with_validation
from composer.checkpoint.restricted_pickle import RestrictedUnpickler as _RestrictedUnpickler
from composer.checkpoint.save import (
    MODEL_CHECKPOINT_DIRECTORY_NAME,
    MONOLITHIC_MODEL_CHECKPOINT_FILENAME,
    OPTIM_CHECKPOINT_DIRECTORY_NAME,
    OPTIM_MONO_CHECKPOINT_FILENAME,
    RESUMPTION_CHECKPOINT_FILENAME,
)
from composer.checkpoint.sharded import read_sharded
from composer.checkpoint.state_dict import (
    KeyFilter,
    _is_model_fsdp,
    cast_to,
    filter_keys,
    get_model_state_dict,
    get_optim_state_dict,
)
from composer.checkpoint.whole_run import shared_by_node
from composer.core.model_state import set_model_state, set_optimizer_state
from composer.core.state import State
from composer.utils.checkpoint import ensure_valid_checkpoint
from composer.utils.reproducibility import seed_context

__all__ = [
    "CheckpointLoadOptions",
    "download_and_load_sharded_state_dict",
    "load_checkpoint",
    "load_model_checkpoint",
    "load_optim_checkpoint",
    "load_resumption_checkpoint",
    "torch_set_model_state_dict",
    "torch_set_optimizer_state_dict",
]


@dataclasses.dataclass
class CheckpointLoadOptions:
    """What of a saved run to load, and how."""

    load_model: bool = True
    load_optimizer: bool = False
    load_resumption_state: bool = False
    """Load the counters, schedulers, callbacks, algorithms and random generators."""
    include_keys: KeyFilter = None
    """Shell-style patterns of the names of the weights to load; None loads all."""
    ignore_keys: KeyFilter = None
    """Patterns of those not to load."""
    sharded_checkpoint: bool = False
    """The checkpoint is sharded, and the model is, too."""
    shard_as_needed_during_load: bool = False
    """Shard a model that is not."""
    strict: bool = True
    """Names too few or too many are an error. Not if patterns pick names."""
    precision: str | torch.dtype = "fp32"
    """What the tensors are cast to on their way into the model."""
    cpu_offload: bool = True
    """Read to the CPU first."""
    load_planner: Any = None
    """How torch maps the shards of a checkpoint to those of the model; by default by name."""
    fsdp_config: Any = None
    """How to shard the model."""
    device_mesh: Any = None
    """Over which ranks to shard the model."""
    seed: int = 42
    """Seeds what is drawn while loading."""


Options = CheckpointLoadOptions | dict[str, Any] | None


def _options(given: Options) -> CheckpointLoadOptions:
    if isinstance(given, CheckpointLoadOptions):
        return given
    return CheckpointLoadOptions(**(given or {}))


def load_checkpoint(
    load_path: str,
    load_options: CheckpointLoadOptions | dict[str, Any],
    model: torch.nn.Module | None = None,
    optim: Optimizer | None = None,
    state: State | None = None,
    model_child_path: str | None = None,
    optim_child_path: str | None = None,
    resumption_filename: str = RESUMPTION_CHECKPOINT_FILENAME,
) -> list[dict[str, Any]] | None:
    """Loads parts of a run from the folder of one save. All ranks call it.

    Args:
        load_path: The folder, or the address of one in an object store.
        load_options: What to load, and how.
        model: Takes the weights; by default that of ``state``.
        optim: Takes the optimizer's state; by default that of ``state``.
        state: Takes the rest of the run.
        model_child_path: Where in the folder the weights are, if not where they are saved.
        optim_child_path: Likewise for the optimizer.
        resumption_filename: Likewise for the rest.

    Returns:
        The states of the random generators, one a rank, if the rest of the run was loaded.

    Raises:
        ValueError: If nobody takes what is to be loaded.
    """
    options = _options(load_options)
    if state is not None:
        model = state.model if model is None else model
        optim = state.optimizers[0] if optim is None and state.optimizers else optim
    if (options.load_model or options.load_optimizer) and model is None:
        raise ValueError("Give a model or a state to load the weights or the optimizer into.")
    if options.load_optimizer and optim is None:
        raise ValueError("load_optimizer=True needs an optim, or a state that has one.")
    if options.load_resumption_state and state is None:
        raise ValueError("load_resumption_state=True needs a state.")
    names = [
        (model_child_path, MODEL_CHECKPOINT_DIRECTORY_NAME, MONOLITHIC_MODEL_CHECKPOINT_FILENAME),
        (optim_child_path, OPTIM_CHECKPOINT_DIRECTORY_NAME, OPTIM_MONO_CHECKPOINT_FILENAME),
    ]
    model_path, optim_path = (
        os.path.join(
            load_path, child or (folder if options.sharded_checkpoint else f"{folder}/{file}")
        )
        for child, folder, file in names
    )
    if options.load_model and model is not None:
        load_model_checkpoint(model, model_path, options, seed=options.seed)
    if options.load_optimizer and model is not None and optim is not None:
        load_optim_checkpoint(model, optim, optim_path, options)
    if options.load_resumption_state and state is not None:
        return load_resumption_checkpoint(state, os.path.join(load_path, resumption_filename))
    return None


def load_model_checkpoint(
    model: torch.nn.Module,
    load_path: str | None = None,
    load_options: Options = None,
    seed: int = 42,
) -> tuple[list[Any], dict[str, Any]]:
    """Loads weights into a model. All ranks call it.

    Args:
        model: Takes the weights.
        load_path: The file or, of a sharded checkpoint, the folder; None loads nothing.
        load_options: How to load.
        seed: Seeds what is drawn while loading.

    Returns:
        The hooks and the modules of the sharding that was done: none.

    Raises:
        ValueError: If the checkpoint is sharded and the model is not.
        RuntimeError: If the weights do not fit.
    """
    options = _options(load_options)
    _check(model, options)
    if load_path is None:
        return [], {}
    strict = options.strict and options.include_keys is None and options.ignore_keys is None
    with seed_context(seed):
        if options.sharded_checkpoint:
            weights = get_model_state_dict(
                model, True, options.precision, options.include_keys, options.ignore_keys
            )
            weights = download_and_load_sharded_state_dict(
                load_path, options.device_mesh, weights, options.load_planner
            )
        else:
            saved = filter_keys(_read_file(load_path), options.include_keys, options.ignore_keys)
            weights = {name: cast_to(value, options.precision) for name, value in saved.items()}
        torch_set_model_state_dict(
            model, weights, strict, options.cpu_offload, options.sharded_checkpoint
        )
    return [], {}


def load_optim_checkpoint(
    model: torch.nn.Module,
    optim: Optimizer,
    load_path: str,
    load_options: Options = None,
) -> None:
    """Loads an optimizer's state. All ranks call it.

    Args:
        model: The model whose parameters it optimizes.
        optim: Takes the state.
        load_path: The file or, of a sharded checkpoint, the folder.
        load_options: How to load.

    Raises:
        ValueError: If the checkpoint is sharded and the model is not.
    """
    options = _options(load_options)
    _check(model, options)
    if options.sharded_checkpoint:
        saved = get_optim_state_dict(model, optim, True, options.precision)
        saved = download_and_load_sharded_state_dict(
            load_path, options.device_mesh, saved, options.load_planner
        )
    else:
        saved = _read_file(load_path)
    torch_set_optimizer_state_dict(
        model, optim, saved, options.strict, options.cpu_offload, options.sharded_checkpoint
    )


def _check(model: torch.nn.Module, options: CheckpointLoadOptions) -> None:
    if options.include_keys is not None and options.ignore_keys is not None:
        raise ValueError("Give include_keys or ignore_keys, not both.")
    if _is_model_fsdp(model):
        return
    if options.shard_as_needed_during_load:
        raise NotImplementedError(
            "shard_as_needed_during_load=True: shard the model before its weights are loaded."
        )
    if options.sharded_checkpoint:
        raise ValueError(
            "sharded_checkpoint=True needs a model that is sharded (FSDP), and "
            f"{type(model).__name__} is not."
        )


def _read_file(load_path: str) -> dict[str, Any]:
    with shared_by_node() as folder:
        path = os.path.join(folder, os.path.basename(load_path))
        download_monolithic_checkpoint(load_path, path, global_rank_zero_only=False)
        return torch_load_with_validation(path)


def torch_set_model_state_dict(
    model: torch.nn.Module,
    model_state_dict: dict[str, Any],
    strict: bool,
    cpu_offload: bool,
    sharded_state_dict: bool = True,
) -> None:
    """Puts weights into a model.

    Args:
        model: Takes them.
        model_state_dict: The weights by name.
        strict: Whether a name too few or too many is an error.
        cpu_offload: Whether they are on the CPU.
        sharded_state_dict: Whether they are sharded as the model is, or whole.

    Raises:
        RuntimeError: If names (``strict``) or shapes do not agree; all of them are listed.
    """
    # Of a model that is not sharded, torch would fill in what is missing if it is told "full".
    full = not sharded_state_dict and _is_model_fsdp(model)
    set_model_state(model, model_state_dict, strict=strict, full=full, cpu_offload=cpu_offload)


def torch_set_optimizer_state_dict(
    model: torch.nn.Module,
    optim: Optimizer,
    optim_state_dict: dict[str, Any],
    strict: bool,
    cpu_offload: bool,
    sharded_state_dict: bool = True,
) -> None:
    """Puts a state into an optimizer; see :func:`torch_set_model_state_dict`."""
    set_optimizer_state(
        model,
        optim,
        optim_state_dict,
        strict=strict,
        full=not sharded_state_dict,
        cpu_offload=cpu_offload,
    )


def download_and_load_sharded_state_dict(
    load_path: str, device_mesh: Any, state_dict: dict[str, Any], load_planner: Any = None
) -> dict[str, Any]:
    """Fills a dictionary of sharded tensors from a folder of shards, and returns it.

    All ranks call it. Each node fetches a folder that is elsewhere.

    Args:
        load_path: The folder, or the address of one in an object store.
        device_mesh: Not needed: the tensors know theirs.
        state_dict: The tensors.
        load_planner: How torch maps the shards to the tensors; by default by name.

    Raises:
        ValueError: If there is no such folder.
    """
    del device_mesh
    with shared_by_node() as folder:
        read_sharded(state_dict, download_folder(load_path, folder), load_planner)
    return state_dict


def load_resumption_checkpoint(state: State, load_path: str) -> list[dict[str, Any]]:
    """Loads what a run needs besides weights and optimizer. All ranks call it.

    Args:
        state: Takes it.
        load_path: The file that ``save_resumption_state_to_disk`` wrote.

    Returns:
        The states of the random generators, one a rank.

    Raises:
        pickle.UnpicklingError: If the file names something that reading it must not run.
    """
    with shared_by_node() as folder:
        path = download_file(load_path, os.path.join(folder, RESUMPTION_CHECKPOINT_FILENAME))
        ensure_valid_checkpoint(path)
        with open(path, "rb") as file:
            parts = _RestrictedUnpickler(file).load()
    rng = parts.pop("rng")
    parts["timestamp"] = {type(state.timestamp).__qualname__: parts["timestamp"]}
    for name in ("schedulers", "callbacks", "scaler"):
        parts[name] = dict(parts.get(name, {}))
    parts["algorithms"] = list(dict(parts.get("algorithms", {})).items())
    state.load_state_dict(parts)
    return rng
