"""Distributed data parallelism: replicas that average their gradients once per optimizer step."""

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from composer.core.state import State
from composer.utils import dist
from composer.utils.string_enum import StringEnum


class DDPSyncStrategy(StringEnum):
    """Says when replicas exchange gradients while a batch is accumulated over micro-batches.

    ``SINGLE_AUTO_SYNC``: with the backward pass of the last micro-batch (the cheapest).
    ``MULTI_AUTO_SYNC``: with every backward pass (needed when a pass may skip parameters).
    ``FORCED_SYNC``: by one explicit all-reduce after the last backward pass.
    """

    SINGLE_AUTO_SYNC = "single_auto_sync"
    MULTI_AUTO_SYNC = "multi_auto_sync"
    FORCED_SYNC = "forced_sync"


def prepare_ddp_module(
    module: torch.nn.Module, find_unused_parameters: bool
) -> DistributedDataParallel | torch.nn.Module:
    """Wraps a module in DDP when it has something to train; a frozen module comes back as it is.

    Raises:
        RuntimeError: if no process group was initialised.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "DDP needs an initialised process group: start the script with the `composer` launcher "
            "or torchrun, or call composer.utils.dist.initialize_dist() first."
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    return DistributedDataParallel(module, find_unused_parameters=find_unused_parameters)


def ddp_sync_context(
    state: State, is_final_microbatch: bool, sync_strategy: str | DDPSyncStrategy
) -> AbstractContextManager[None]:
    """Returns the context of one micro-batch, so that gradients meet when the strategy says."""
    model = state.model
    if not isinstance(model, DistributedDataParallel):
        return nullcontext()
    strategy = DDPSyncStrategy(sync_strategy)
    if strategy is DDPSyncStrategy.MULTI_AUTO_SYNC:
        return nullcontext()
    if strategy is DDPSyncStrategy.SINGLE_AUTO_SYNC:
        return nullcontext() if is_final_microbatch else model.no_sync()
    return _forced_sync(model, is_final_microbatch)


def ddp_no_sync(state: State, *_: bool) -> AbstractContextManager[None]:
    """Returns the context of a micro-batch whose gradients stay on this rank."""
    model = state.model
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


@contextmanager
def _forced_sync(model: DistributedDataParallel, is_final_microbatch: bool) -> Iterator[None]:
    with model.no_sync():
        yield
    if is_final_microbatch:
        average_gradients(model)


def average_gradients(model: torch.nn.Module) -> None:
    """Averages gradients over ranks; where only some ranks have one, the others count as zero."""
    world_size = dist.get_world_size()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if world_size == 1 or not parameters:
        return
    used = [parameter.grad is not None for parameter in parameters]
    is_used = torch.tensor(used, dtype=torch.int32, device=parameters[0].device)
    dist.all_reduce(is_used, "MAX")
    for parameter in itertools.compress(parameters, is_used.tolist()):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, "SUM")
        parameter.grad.div_(world_size)
