"""Weights and optimizer moments, by name, through torch's own state-dict API.

The one place that knows how they are gathered and spread: full or sharded, wrapped or not, compiled
or not. torch names every parameter as the plain model does, so that no wrapper leaves a prefix in a
checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from composer.utils.misc import is_model_ddp, unwrap_model
from composer.utils.model_wrapper import ModelWrapper

_DDP_PREFIX = "module."
_WRAPPER_INFIXES = ("_orig_mod.", "_checkpoint_wrapped_module.")


def get_model_state(
    model: torch.nn.Module, *, full: bool = False, cpu_offload: bool = False
) -> dict[str, Any]:
    """Returns the weights and persistent buffers by name.

    Args:
        model: The model, with or without wrappers.
        full: Whether to gather sharded tensors; then only rank 0 receives them if ``cpu_offload``.
        cpu_offload: Whether to copy the tensors to the CPU.
    """
    if isinstance(model, ModelWrapper):
        return model.get_model_state()
    from torch.distributed.checkpoint import state_dict as dcp

    options = dcp.StateDictOptions(full_state_dict=full, cpu_offload=cpu_offload)
    return dcp.get_model_state_dict(model, submodules=None, options=options)


@contextlib.contextmanager
def whole_model_wanted(model: torch.nn.Module) -> Iterator[None]:
    """Has a model that keeps only its adapters in checkpoints give and take its base too."""
    plain = unwrap_model(model)
    name = "should_save_peft_only"
    if not getattr(plain, name, False):
        yield
        return
    setattr(plain, name, False)
    try:
        yield
    finally:
        setattr(plain, name, True)


def set_model_state(
    model: torch.nn.Module,
    state: dict[str, Any],
    *,
    strict: bool,
    full: bool = False,
    cpu_offload: bool = False,
    broadcast: bool = False,
) -> tuple[list[str], list[str]]:
    """Puts weights and buffers into the model; returns the names missing and not expected.

    Args:
        model: The model, with or without wrappers.
        state: Tensors by name.
        strict: Whether a name too few or too many is an error.
        full: Whether the tensors are whole, to be sharded as the model is.
        cpu_offload: Whether the model's tensors live on the CPU between uses.
        broadcast: Whether only rank 0 has the tensors.

    Raises:
        RuntimeError: If the names (``strict``) or shapes do not agree; all of them are listed.
    """
    if isinstance(model, ModelWrapper):
        return model.set_model_state(state, strict=strict)
    from torch.distributed.checkpoint import state_dict as dcp

    options = dcp.StateDictOptions(
        full_state_dict=full or _is_to_be_spread(model, state.values()),
        cpu_offload=cpu_offload,
        broadcast_from_rank0=broadcast,
        strict=strict,
    )
    # torch takes the tensors out of the dictionary that it is given; the caller's stays whole.
    missing, unexpected = dcp.set_model_state_dict(model, dict(state), options=options)
    return list(missing), list(unexpected)


def get_optimizer_state(
    model: torch.nn.Module, optimizer: Optimizer, *, full: bool = False, cpu_offload: bool = False
) -> dict[str, Any]:
    """Returns the optimizer's state and parameter groups, keyed by the parameters' names.

    An optimizer that has not stepped yet has an empty ``state``; it is left as it is.
    """
    if isinstance(model, ModelWrapper):
        return model.get_optimizer_state()
    if not optimizer.state:
        # torch would take a step with lr 0 to make the moments. That counts as Adam's first step,
        # so a run that saved at batch 0 would differ from one that did not.
        return {"state": {}, "param_groups": _named_groups(model, optimizer)}
    from torch.distributed.checkpoint import state_dict as dcp

    options = dcp.StateDictOptions(full_state_dict=full, cpu_offload=cpu_offload)
    return dict(dcp.get_optimizer_state_dict(model, optimizer, submodules=None, options=options))


def set_optimizer_state(
    model: torch.nn.Module,
    optimizer: Optimizer,
    state: dict[str, Any],
    *,
    strict: bool = True,
    full: bool = False,
    cpu_offload: bool = False,
    broadcast: bool = False,
) -> None:
    """Puts a state that `get_optimizer_state` returned into the optimizer.

    Args:
        model: The model whose parameters it optimizes.
        optimizer: The optimizer.
        state: The state, keyed by the parameters' names.
        strict: Whether a parameter group that the saved state does not have is an error.
        full: Whether the tensors are whole, to be sharded as the parameters are.
        cpu_offload: Whether the state lives on the CPU between uses.
        broadcast: Whether only rank 0 has the tensors.
    """
    if isinstance(model, ModelWrapper):
        model.set_optimizer_state(state)
        return
    if not broadcast and not state["state"]:
        _set_groups_by_name(model, optimizer, state["param_groups"])
        return
    from torch.distributed.checkpoint import state_dict as dcp

    moments = (value for parts in state["state"].values() for value in parts.values())
    options = dcp.StateDictOptions(
        full_state_dict=full or _is_to_be_spread(model, moments),
        cpu_offload=cpu_offload,
        broadcast_from_rank0=broadcast,
        strict=strict,
    )
    copied = {
        "state": {name: dict(moments) for name, moments in state["state"].items()},
        "param_groups": [dict(group) for group in state["param_groups"]],
    }
    dcp.set_optimizer_state_dict(model, optimizer, optim_state_dict=copied, options=options)


def _is_to_be_spread(model: torch.nn.Module, values: Iterable[Any]) -> bool:
    """Tells whether whole tensors, as of a file, are to go into a sharded model."""
    is_sharded = any(hasattr(parameter, "device_mesh") for parameter in model.parameters())
    return is_sharded and not any(hasattr(value, "device_mesh") for value in values)


def moments_to_fill(
    model: torch.nn.Module,
    optimizer: Optimizer,
    saved: dict[str, dict[str, tuple[torch.Size, torch.dtype] | None]],
) -> dict[str, dict[str, torch.Tensor | None]]:
    """Returns empty tensors for saved moments, spread as their parameters are now.

    Args:
        model: The model whose parameters it optimizes.
        optimizer: The optimizer; it is not changed.
        saved: Shape and type of each moment, by its parameter's name and its own; None for what is
            not a tensor. Parameters that the optimizer does not have are left out.
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    found: dict[str, dict[str, torch.Tensor | None]] = {}
    for parameter, name in _plain_names(model).items():
        if name not in saved or id(parameter) not in groups:
            continue
        group = groups[id(parameter)]
        found[name] = {
            key: None if kind is None else _moment(parameter, key, group, *kind)
            for key, kind in saved[name].items()
        }
    return found


def _moment(
    parameter: torch.nn.Parameter,
    key: str,
    group: dict[str, Any],
    size: torch.Size,
    dtype: torch.dtype,
) -> torch.Tensor:
    if size == parameter.size():
        kept = parameter.dtype if dtype.is_floating_point else dtype
        return torch.empty_like(parameter, dtype=kept, requires_grad=False).detach()
    # torch counts steps on the host, unless a kernel on the device does.
    on_host = key == "step" and not (group.get("capturable") or group.get("fused"))
    return torch.empty(size, dtype=dtype, device="cpu" if on_host else parameter.device)


def adopt_optimizer_state(
    model: torch.nn.Module,
    optimizer: Optimizer,
    moments: dict[str, dict[str, Any]],
    groups: list[dict[str, Any]],
) -> None:
    """Makes tensors themselves, not copies of them, the optimizer's moments.

    torch's own way makes moments, and then copies into them: twice the memory.

    Args:
        model: The model whose parameters it optimizes.
        optimizer: The optimizer.
        moments: The moments by their parameters' names, spread as those are.
        groups: The saved settings, with the parameters' names.
    """
    if groups:
        _set_groups_by_name(model, optimizer, groups)
    for parameter, name in _plain_names(model).items():
        if name in moments:
            optimizer.state[parameter] = dict(moments[name])


def get_state_names(model: torch.nn.Module) -> list[str]:
    """Returns the names that `get_model_state` gives, and gathers no weight for it."""
    return [_plain_name(name) for name in unwrap_model(model).state_dict(keep_vars=True)]


def _plain_name(name: str) -> str:
    for infix in _WRAPPER_INFIXES:
        name = name.replace(infix, "")
    return name


def _plain_names(model: torch.nn.Module) -> dict[torch.nn.Parameter, str]:
    """Returns the name of each parameter as the model without wrappers has it."""
    named = unwrap_model(model).named_parameters()
    return {parameter: _plain_name(name) for name, parameter in named}


def _named_groups(model: torch.nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
    names = _plain_names(model)
    return [
        {**group, "params": [names[parameter] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]


def _set_groups_by_name(
    model: torch.nn.Module, optimizer: Optimizer, saved: list[dict[str, Any]]
) -> None:
    """Takes over the settings of the groups with the same parameters."""
    by_names = {tuple(sorted(group["params"])): group for group in saved}
    for group, named in zip(optimizer.param_groups, _named_groups(model, optimizer), strict=True):
        found = by_names.get(tuple(sorted(named["params"])))
        if found is None:
            raise ValueError(
                f"The checkpoint's optimizer has no parameter group of {named['params'][:3]}... "
                f"({len(named['params'])} parameters); it has groups of "
                f"{[len(group['params']) for group in saved]} parameters"
            )
        group.update((key, value) for key, value in found.items() if key != "params")


def strip_ddp_prefix(model: torch.nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """Returns the weights without DDP's ``module.``, which very old checkpoints have.

    A model that has a child of that name itself is left alone.
    """
    plain = unwrap_model(model)
    if is_model_ddp(plain) or any(name == "module" for name, _ in plain.named_children()):
        return state
    if not state or not all(name.startswith(_DDP_PREFIX) for name in state):
        return state
    return {name.removeprefix(_DDP_PREFIX): value for name, value in state.items()}
