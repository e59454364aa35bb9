"""Spreads a model over ranks: the one entry, whose body says the order."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from composer.core.model_state import whole_model_wanted
from composer.core.precision import Precision
from composer.distributed.activation_checkpointing import (
    CheckFn,
    apply_ac,
    generate_composer_model_check_fn,
)
from composer.distributed.fully_shard import prepare_fully_shard, sync_module_states
from composer.distributed.optimizer_parameters import sync_optimizer_and_model_params
from composer.distributed.param_init import InitFn, meta_init, reset_parameters
from composer.distributed.wrapping import generate_composer_model_policy
from composer.utils import dist
from composer.utils.parallelism import FSDP2Config

__all__ = [
    "get_full_state_dict",
    "have_all_ranks_agree",
    "log_execution_time",
    "parallelize_composer_model",
    "parallelize_model",
    "update_sync_module_states_if_needed",
]

log = logging.getLogger(__name__)


@contextlib.contextmanager
def log_execution_time(logger: logging.Logger, operation_name: str) -> Iterator[None]:
    """Logs how long the block took."""
    start = time.monotonic()
    try:
        yield
    finally:
        logger.info(f"{operation_name} took {time.monotonic() - start:.2f} seconds")


def update_sync_module_states_if_needed(model: torch.nn.Module, fsdp_config: FSDP2Config) -> None:
    """Switches on that rank 0 gives its weights to the others, if only it has any.

    Raises:
        ValueError: If some ranks have weights and others not, and it is not rank 0 alone.
    """
    is_meta = [parameter.is_meta for parameter in model.parameters()]
    kinds = dist.all_gather_object((any(is_meta), all(is_meta)))
    if len(set(kinds)) == 1:
        return
    rank_zero_is_real = not kinds[0][0]
    others_are_meta = all(all_meta for _, all_meta in kinds[1:])
    if not (rank_zero_is_real and others_are_meta):
        real = [rank for rank, (any_meta, _) in enumerate(kinds) if not any_meta]
        raise ValueError(
            "Invalid FSDP2 model initialization. Detected mixed initialization: ranks "
            f"{real} have weights and the others are on meta. Either rank 0 alone has weights "
            "(init_device: mixed), or all ranks, or none (init_device: meta)"
        )
    if not fsdp_config.sync_module_states:
        log.info("Only rank 0 has weights: sync_module_states is switched on.")
        fsdp_config.sync_module_states = True


def have_all_ranks_agree(model: torch.nn.Module, device: torch.device) -> bool:
    """Gives all ranks rank 0's weights if they built different ones, as DDP does.

    Cut from weights that differ, the shards would make up a model that nobody built.

    Args:
        model: The model, not sharded yet; what a rank has on ``meta`` is passed over.
        device: Where this rank's process group takes tensors from.

    Returns:
        Whether all ranks have weights, which then are the same.
    """
    tensors = [*model.parameters(), *model.buffers()]
    # The first numbers of each tensor tell apart what different seeds or files gave.
    prints = [
        None if t.is_meta else str(float(t.detach().flatten()[:64].double().sum())) for t in tensors
    ]
    found = [set(each) for each in zip(*dist.all_gather_object(prints), strict=True)]
    differing = [
        t for t, each in zip(tensors, found, strict=True) if len(each) > 1 and None not in each
    ]
    if differing:
        log.info("The ranks built different weights: rank 0's are sent to all.")
    with torch.no_grad():
        for tensor in differing:
            sent = tensor.detach().to(device)
            dist.broadcast(sent, 0)
            tensor.copy_(sent)
    return not any(None in each for each in found)


@contextlib.contextmanager
def get_full_state_dict(model: torch.nn.Module) -> Iterator[dict[str, Any]]:
    """Gives the weights that rank 0 has before the block shards the model; empty elsewhere."""
    with whole_model_wanted(model):
        whole = dict(model.state_dict()) if dist.get_global_rank() == 0 else {}
        yield whole
        whole.clear()


def _weights_to_send(
    model: torch.nn.Module, config: FSDP2Config
) -> contextlib.AbstractContextManager[dict[str, Any] | None]:
    return get_full_state_dict(model) if config.sync_module_states else contextlib.nullcontext()


def parallelize_model(
    model: torch.nn.Module,
    config: FSDP2Config,
    optimizer: Optimizer | None = None,
    precision: Precision | None = None,
    fsdp_wrap_policy: Any = None,
    activation_checkpointing_check_fn: CheckFn | None = None,
    param_init_fn: InitFn | None = None,
    compile_blocks: Callable[[torch.nn.Module], None] | None = None,
) -> None:
    """Shards a model in place, with everything that has to happen before and after, in order.

    Args:
        model: The model.
        config: The settings.
        optimizer: The optimizer, which gets the new parameters.
        precision: The run's precision.
        fsdp_wrap_policy: Says which modules are units; by default the model does.
        activation_checkpointing_check_fn: Says which modules recompute; by default the model does.
        param_init_fn: Initialises what one module itself owns, for a model on ``meta``.
        compile_blocks: Compiles the repeated blocks of the model, which must happen in between.

    Raises:
        ValueError: If the settings and the model do not go together.
    """
    if activation_checkpointing_check_fn is not None and not (
        config.activation_checkpointing or config.activation_cpu_offload
    ):
        raise ValueError(
            "activation_checkpointing_check_fn was given, but neither activation_checkpointing nor "
            "activation_cpu_offload is on: switch one on, or leave the function out"
        )
    update_sync_module_states_if_needed(model, config)
    with (
        sync_optimizer_and_model_params(optimizer, model),
        get_full_state_dict(model)
        if config.sync_module_states
        else contextlib.nullcontext() as whole,
    ):
        apply_ac(
            model,
            config.activation_checkpointing,
            config.activation_cpu_offload,
            activation_checkpointing_check_fn,
        )
        if compile_blocks is not None:
            compile_blocks(model)
        with log_execution_time(log, "Sharding the model"):
            prepare_fully_shard(model, config, precision, fsdp_wrap_policy)
        if whole is None:
            meta_init(model, param_init_fn, on_cpu=config.cpu_offload)
        else:
            with log_execution_time(log, "Sending rank 0's weights to all ranks"):
                sync_module_states(model, whole, config.cpu_offload)
    if config.verbose:
        log.info(f"Sharded model:\n{model}")


def parallelize_composer_model(
    composer_model: torch.nn.Module,
    optimizer: Optimizer | None,
    config: FSDP2Config,
    precision: Precision | None = None,
    compile_blocks: Callable[[torch.nn.Module], None] | None = None,
) -> None:
    """Shards a ComposerModel: each child is a unit, and what its ``fsdp_wrap_fn`` names below it.

    Args:
        composer_model: The model, changed in place.
        optimizer: The optimizer, which gets the new parameters.
        config: The settings.
        precision: The run's precision.
        compile_blocks: Compiles the repeated blocks of the model.
    """
    recomputes = bool(config.activation_checkpointing) or config.activation_cpu_offload
    parallelize_model(
        composer_model,
        config,
        optimizer,
        precision,
        fsdp_wrap_policy=generate_composer_model_policy(composer_model),
        activation_checkpointing_check_fn=(
            generate_composer_model_check_fn(composer_model) if recomputes else None
        ),
        param_init_fn=init_fn_of(composer_model),
        compile_blocks=compile_blocks,
    )


def init_fn_of(composer_model: torch.nn.Module) -> InitFn | None:
    """Returns what initialises a module: its nearest parent's ``param_init_fn``, or itself."""
    speakers: dict[int, InitFn] = {}

    def visit(module: torch.nn.Module, asked: InitFn | None) -> None:
        own: InitFn | None = getattr(module, "param_init_fn", None)
        asked = own or asked
        speakers[id(module)] = asked or reset_parameters
        for child in module.children():
            visit(child, asked)

    visit(composer_model, None)
    return lambda module: speakers[id(module)](module)
