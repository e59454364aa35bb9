"""The parts of a run written to a folder, each in a file or folder of its own."""

import dataclasses
import json
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from composer.checkpoint.atomic import written_aside
from composer.checkpoint.monolithic import write_checkpoint_file
from composer.checkpoint.naming import format_name_with_dist_and_time
from composer.checkpoint.sharded import write_sharded
from composer.checkpoint.state_dict import (
    KeyFilter,
    get_metadata_state_dict,
    get_model_state_dict,
    get_optim_state_dict,
    get_resumption_state_dict,
)
from composer.core.state import State
from composer.devices.device import Device
from composer.utils import dist

__all__ = [
    "METADATA_CHECKPOINT_FILENAME",
    "MODEL_CHECKPOINT_DIRECTORY_NAME",
    "MONOLITHIC_MODEL_CHECKPOINT_FILENAME",
    "OPTIM_CHECKPOINT_DIRECTORY_NAME",
    "OPTIM_MONO_CHECKPOINT_FILENAME",
    "RESUMPTION_CHECKPOINT_FILENAME",
    "CheckpointSaveOptions",
    "is_state_dict_sharded",
    "save_checkpoint_to_disk",
    "save_composer_metadata_to_disk",
    "save_model_to_disk",
    "save_optim_to_disk",
    "save_resumption_state_to_disk",
    "save_state_dict_to_disk",
]

MODEL_CHECKPOINT_DIRECTORY_NAME = "model"
MONOLITHIC_MODEL_CHECKPOINT_FILENAME = "model.pt"
OPTIM_CHECKPOINT_DIRECTORY_NAME = "optim"
OPTIM_MONO_CHECKPOINT_FILENAME = "optim.pt"
METADATA_CHECKPOINT_FILENAME = "composer_metadata.json"
RESUMPTION_CHECKPOINT_FILENAME = "resumption.pkl"


@dataclasses.dataclass
class CheckpointSaveOptions:
    """What of a run to save, and how."""

    save_frequency: str | int | Callable[..., bool] = "1ep"
    """For whoever saves again and again; one call saves once."""
    dir_prefix: str = "ep{epoch}-ba{batch}"
    """The folder of one save, with placeholders."""
    overwrite: bool = False
    """Replace what is there; otherwise that is a ``ValueError``."""
    save_model: bool = True
    save_optimizer: bool = True
    save_resumption_state: bool = True
    """Save the counters, schedulers, callbacks, algorithms and random generators."""
    num_checkpoints_to_keep: int = -1
    """For whoever saves again and again."""
    save_format: str = "pt"
    sharded_checkpoint: bool = False
    """Save each rank's shards instead of one file; for sharded models."""
    precision: str | torch.dtype = "fp32"
    """What weights and moments are cast to: ``fp32``, ``fp16``, ``bf16`` or a dtype."""
    include_keys: KeyFilter = None
    """Shell-style patterns of the names of the weights to save; None saves all."""
    ignore_keys: KeyFilter = None
    """Patterns of those not to save."""


def save_checkpoint_to_disk(
    destination_dir: str,
    state: State,
    options: CheckpointSaveOptions | dict[str, Any] | None = None,
) -> str:
    """Saves a run to a folder within ``destination_dir`` and returns its path. All ranks call it.

    Args:
        destination_dir: Where to save; ``{run_name}`` and counters are filled in.
        state: The run's State.
        options: What to save, and how.

    Raises:
        ValueError: If something is there that would be replaced.
    """
    if not isinstance(options, CheckpointSaveOptions):
        options = CheckpointSaveOptions(**(options or {}))
    template = os.path.join(destination_dir, options.dir_prefix)
    folder = format_name_with_dist_and_time(template, state.run_name, state.timestamp)
    how: dict[str, Any] = {
        "sharded_checkpoint": options.sharded_checkpoint,
        "precision": options.precision,
        "overwrite": options.overwrite,
        "save_format": options.save_format,
    }
    if options.save_model:
        keys = {"include_keys": options.include_keys, "ignore_keys": options.ignore_keys}
        save_model_to_disk(state.model, folder, **keys, **how)
    if options.save_optimizer:
        save_optim_to_disk(state.model, state.optimizers[0], folder, **how)
    if options.save_resumption_state:
        save_resumption_state_to_disk(state, os.path.join(folder, RESUMPTION_CHECKPOINT_FILENAME))
    save_composer_metadata_to_disk(
        os.path.join(folder, METADATA_CHECKPOINT_FILENAME),
        state.model,
        options.sharded_checkpoint,
        options.precision,
        state.device,
        state.device_train_microbatch_size,
    )
    return folder


def save_model_to_disk(
    model: torch.nn.Module,
    destination_dir: str,
    sharded_checkpoint: bool = False,
    precision: str | torch.dtype = "fp32",
    include_keys: KeyFilter = None,
    ignore_keys: KeyFilter = None,
    overwrite: bool = False,
    save_format: str = "pt",
) -> str | None:
    """Saves the weights to ``<destination_dir>/model`` and returns the path.

    For the arguments see :class:`CheckpointSaveOptions`, for what is returned
    :func:`save_state_dict_to_disk`.
    """
    state = get_model_state_dict(model, sharded_checkpoint, precision, include_keys, ignore_keys)
    path = os.path.join(destination_dir, MODEL_CHECKPOINT_DIRECTORY_NAME)
    if not sharded_checkpoint:
        path = os.path.join(path, MONOLITHIC_MODEL_CHECKPOINT_FILENAME)
    return save_state_dict_to_disk(state, path, overwrite, save_format)


def save_optim_to_disk(
    model: torch.nn.Module,
    optimizer: Optimizer,
    destination_dir: str,
    sharded_checkpoint: bool = False,
    precision: str | torch.dtype = "fp32",
    overwrite: bool = False,
    save_format: str = "pt",
) -> str | None:
    """Saves the optimizer to ``<destination_dir>/optim`` and returns the path.

    For the arguments see :class:`CheckpointSaveOptions`, for what is returned
    :func:`save_state_dict_to_disk`.
    """
    state = get_optim_state_dict(model, optimizer, sharded_checkpoint, precision)
    path = os.path.join(destination_dir, OPTIM_CHECKPOINT_DIRECTORY_NAME)
    if not sharded_checkpoint:
        path = os.path.join(path, OPTIM_MONO_CHECKPOINT_FILENAME)
    return save_state_dict_to_disk(state, path, overwrite, save_format)


def save_composer_metadata_to_disk(
    destination_file_path: str,
    model: torch.nn.Module | None = None,
    sharded_state_dict: bool | None = None,
    precision: str | torch.dtype | None = None,
    device: Device | None = None,
    device_train_microbatch_size: int | float | None = None,
) -> dict[str, Any]:
    """Writes, on rank 0, what a reader may want to know of a checkpoint's making, and returns it.

    For the arguments see :func:`composer.checkpoint.state_dict.get_metadata_state_dict`.
    """
    metadata = get_metadata_state_dict(
        model, sharded_state_dict, precision, device, device_train_microbatch_size
    )

    def write() -> None:
        with written_aside(destination_file_path) as aside, open(aside, "w") as file:
            # A tokenizer's files may be in it as bytes.
            json.dump(metadata, file, indent=4, default=str)

    dist.from_rank_zero(write)
    return metadata


def save_resumption_state_to_disk(state: State, destination_file_path: str) -> str:
    """Writes, on rank 0, what a run needs besides weights and optimizer, and returns the path."""
    parts = get_resumption_state_dict(state)

    def write() -> None:
        with written_aside(destination_file_path) as aside, open(aside, "wb") as file:
            pickle.dump(parts, file)

    dist.from_rank_zero(write)
    return destination_file_path


def save_state_dict_to_disk(
    state_dict: dict[str, Any],
    destination_file_path: str,
    overwrite: bool = False,
    save_format: str = "pt",
) -> str | None:
    """Writes a dictionary of tensors: sharded ones to a folder, others to a file on rank 0.

    All ranks call it. The path is returned on the ranks that wrote something, and None on others.

    Args:
        state_dict: The tensors. Ranks other than 0 may have none.
        destination_file_path: The file; for sharded tensors a folder, without an ending.
        overwrite: Replace what is there.
        save_format: ``pt``.

    Raises:
        ValueError: If something is there and ``overwrite`` is off.
        NotImplementedError: If the format is another.
    """
    if save_format != "pt":
        raise NotImplementedError(f"save_format={save_format!r} is not known; use 'pt'.")
    is_sharded = any(dist.all_gather_object(is_state_dict_sharded(state_dict)))
    path = Path(destination_file_path)
    if is_sharded and path.suffix:
        warnings.warn(
            f"A sharded state is saved to a folder: {path} becomes {path.with_suffix('')}.",
            stacklevel=2,
        )
        path = path.with_suffix("")
    dist.from_rank_zero(lambda: _refuse_existing(path, is_sharded, overwrite))
    if is_sharded:
        write_sharded(state_dict, str(path))
        return str(path)
    dist.from_rank_zero(lambda: write_checkpoint_file(state_dict, str(path)))
    return str(path) if dist.get_global_rank() == 0 else None


def _refuse_existing(path: Path, is_sharded: bool, overwrite: bool) -> None:
    """Checks the place; what stands there stays until the new save is whole and takes it over."""
    if not path.exists():
        return
    if not overwrite:
        raise ValueError(f"{path} already exists; choose another place, or set overwrite=True.")
    if path.is_dir() and not is_sharded:
        raise ValueError(
            f"{path} is a folder, and a file is to be saved there; choose another place."
        )


def is_state_dict_sharded(state_dict: dict[str, Any]) -> bool:
    """Tells whether a tensor in a dictionary, however deep, is spread over ranks."""
    return any(
        is_state_dict_sharded(value) if isinstance(value, dict) else isinstance(value, DTensor)
        for value in state_dict.values()
    )
