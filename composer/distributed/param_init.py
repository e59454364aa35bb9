"""Gives the parameters of a model that was built without memory (``meta``) their first values."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from composer.distributed.full_parameters import write_shard
from composer.utils import dist
from composer.utils.gradients import as_sharded

__all__ = ["meta_init"]

InitFn = Callable[[torch.nn.Module], None]


def _own_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    tensors = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _on_meta(module: torch.nn.Module) -> list[torch.Tensor]:
    return [tensor for tensor in _own_tensors(module).values() if tensor.is_meta]


def meta_init(
    module: torch.nn.Module, param_init_fn: InitFn | None = None, on_cpu: bool = False
) -> None:
    """Makes memory for everything on ``meta`` in a module, and initialises it.

    All ranks draw the same numbers, from rank 0's generator of the CPU, so that a sharded model
    starts with the values that it would have on one process, on whatever device it is.

    Args:
        module: The module, sharded or not; what is not on ``meta`` stays as it is.
        param_init_fn: Initialises what one module itself owns; by default the module's
            ``reset_parameters()``.
        on_cpu: Whether shards stay on the CPU, wherever they are computed with.

    Raises:
        ValueError: If something on ``meta`` is initialised by nobody.
    """
    names = {id(each): name for name, each in module.named_modules() if _on_meta(each)}
    if not names:
        return
    for each in module.modules():
        own = list(each.parameters(recurse=False))
        if id(each) in names and any(not p.is_meta for p in own) and any(p.is_meta for p in own):
            raise ValueError(
                f"{names[id(each)] or 'the model'} has parameters with values beside some on meta; "
                "build a module in one place"
            )
    device = _device_of(module)
    ties = _tied_places(module)
    home = torch.device("cpu") if on_cpu else device
    module._apply(lambda tensor: _empty(tensor, home) if tensor.is_meta else tensor)
    _tie_again(ties)
    with torch.no_grad(), _rank_zero_numbers():
        done: set[int] = set()

        def initialise_once(each: torch.nn.Module) -> None:
            if id(each) in names and id(each) not in done:
                done.add(id(each))
                _initialise(each, names[id(each)], param_init_fn)

        # Children first: the order of Module.apply, in which a model initialises itself.
        module.apply(initialise_once)
    for each in module.modules():
        if id(each) in names:
            _move_whole(each, device)


@contextlib.contextmanager
def _rank_zero_numbers() -> Iterator[None]:
    """Has every rank draw what rank 0 would, and gives each its own generator back."""
    own_state = torch.get_rng_state()
    state = [own_state]
    dist.broadcast_object_list(state)
    torch.set_rng_state(state[0])
    try:
        yield
    finally:
        if dist.get_global_rank() > 0:
            torch.set_rng_state(own_state)


def _move_whole(module: torch.nn.Module, device: torch.device) -> None:
    for tensor in _own_tensors(module).values():
        if as_sharded(tensor) is None:
            tensor.data = tensor.data.to(device)


def _empty(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    is_whole = as_sharded(tensor) is None
    made = torch.empty_like(tensor, device="cpu" if is_whole else device)
    # What nobody initialises would otherwise go unseen: fresh memory often is zero.
    return made.fill_(math.nan) if made.is_floating_point() else made


Places = dict[int, list[tuple[torch.nn.Module, str]]]


def _tied_places(module: torch.nn.Module) -> Places:
    """Returns where each parameter that has several places is registered."""
    places: Places = defaultdict(list)
    for each in module.modules():
        for name, parameter in each._parameters.items():
            if parameter is not None and parameter.is_meta:
                places[id(parameter)].append((each, name))
    return {key: found for key, found in places.items() if len(found) > 1}


def _tie_again(places: Places) -> None:
    for (first, first_name), *others in places.values():
        for each, name in others:
            each._parameters[name] = first._parameters[first_name]


def _device_of(module: torch.nn.Module) -> torch.device:
    for parameter in module.parameters():
        mesh: Any = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            kind = str(mesh.device_type)
            return (
                torch.device(kind, torch.cuda.current_device())
                if kind == "cuda"
                else torch.device(kind)
            )
    return torch.device("cpu")


def reset_parameters(module: torch.nn.Module) -> None:
    """Has a module give what it owns its first values.

    Raises:
        ValueError: If it cannot.
    """
    reset = getattr(module, "reset_parameters", None)
    if not callable(reset):
        raise ValueError(
            f"a {type(module).__name__} is on meta and nothing initialises it: give the model "
            f"param_init_fn(module), or {type(module).__name__} a reset_parameters()"
        )
    reset()


def _initialise(module: torch.nn.Module, name: str, param_init_fn: InitFn | None) -> None:
    # Each module's own parameters are whole while it is initialised: a shard alone could not draw
    # the numbers that the whole would, and many methods look at the shape.
    sharded = {
        key: parameter
        for key, parameter in module._parameters.items()
        if parameter is not None and as_sharded(parameter) is not None
    }
    for key, parameter in sharded.items():
        whole = torch.full(parameter.shape, math.nan, dtype=parameter.dtype)
        module._parameters[key] = torch.nn.Parameter(whole, parameter.requires_grad)
    if param_init_fn is None:
        reset_parameters(module)
    else:
        param_init_fn(module)
    for key, tensor in _own_tensors(module).items():
        if tensor.is_floating_point() and tensor.isnan().any():
            raise ValueError(
                f"{name}.{key} was on meta and has no value after {type(module).__name__} was "
                "initialised: have param_init_fn, or reset_parameters, set it"
            )
    for key, parameter in sharded.items():
        whole = module._parameters[key]
        assert whole is not None
        write_shard(parameter, whole)
        module._parameters[key] = parameter
