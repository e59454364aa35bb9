"""MuP: initial weights and learning rates by which one learning rate fits models of any width."""

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch.optim import SGD, Optimizer

from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.protocols import RunOrder
from composer.core.state import State

__all__ = ["MuP"]

Base = torch.nn.Module | Callable[[], torch.nn.Module] | int


class _Rule(NamedTuple):
    """How a parameter differs from that of the base model."""

    parameter: torch.nn.Parameter
    base: torch.Tensor
    width: float
    """How many times as many inputs it sums over."""
    is_output: bool
    """Whether it sums over them and gives as many outputs as the base."""


class MuP(Algorithm):
    """Gives a model the initial weights and learning rates of muP (arXiv 2203.03466, table 3).

    Rates tuned on the base model are right for the model too. Weights are drawn as the model draws
    them, and scaled: matrices to the deviation of the base's over the root of the ratio of widths,
    the output layer to the base's over the ratio, everything else to the base's. The learning rate
    of matrices and of the output layer is divided by the ratio (of matrices that Muon steps, by its
    root). Decay per step stays as it is.

    Keep the size of attention's heads as the base has it: their scores are not scaled. At the
    width of the base nothing changes.

    Args:
        base: The model whose rates are known: a model with the same names and other widths, a
            function that makes one, or its width (``d_model``) for a model that can be made of
            another width (``at_width``), as MPT can.
    """

    run_order: ClassVar[RunOrder] = "first"  # parts that others replace the base does not have

    def __init__(self, base: Base) -> None:
        self.base = base

    def match(self, event: Event, state: State) -> bool:
        """Matches once, at the start."""
        return event is Event.INIT

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Scales the weights, and splits the optimizers' groups by learning rate."""
        if any(parameter.is_meta for parameter in state.model.parameters()):
            raise ValueError("MuP scales weights, which are not there yet: set init_device: cpu.")
        for optimizer in state.optimizers:
            if isinstance(optimizer, SGD):
                raise ValueError(
                    f"MuP's learning rates are those of Adam and Muon, not of "
                    f"{type(optimizer).__name__}; use DecoupledAdamW."
                )
        rules = list(_rules(state.model, self._base_model(state.model)))
        for rule in rules:
            _scale_weights(rule)
        for optimizer in state.optimizers:
            _split_groups(optimizer, {rule.parameter: rule.width for rule in rules})
        return None

    def _base_model(self, model: torch.nn.Module) -> torch.nn.Module:
        if isinstance(self.base, torch.nn.Module):
            return self.base
        with torch.random.fork_rng(devices=[]):
            if not isinstance(self.base, int):
                return self.base()
            make: Any = getattr(model, "at_width", None)
            if make is None:
                raise ValueError(
                    f"A {type(model).__name__} cannot be made of width {self.base}: it has no "
                    "at_width(d_model). Give MuP a narrow model, or a function that makes one."
                )
            return make(self.base)


def _rules(model: torch.nn.Module, base: torch.nn.Module) -> Iterator[_Rule]:
    owners: dict[torch.nn.Parameter, list[torch.nn.Module]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(parameter, []).append(module)
        head: Any = getattr(module, "get_output_embeddings", lambda: None)()
        if isinstance(head, torch.nn.Embedding):
            _refuse_tied()
    of_base = dict(base.named_parameters())
    for name, parameter in model.named_parameters():
        small = of_base.get(name)
        if small is None or small.ndim != parameter.ndim:
            raise ValueError(f"The base model has no parameter {name!r} like that of the model.")
        if small.shape == parameter.shape:
            continue
        kinds = {isinstance(owner, torch.nn.Embedding) for owner in owners[parameter]}
        if len(kinds) > 1:
            _refuse_tied()
        dim = None if kinds == {True} else _input_dim(owners[parameter][0], parameter)
        width = 1.0 if dim is None else parameter.size(dim) / small.size(dim)
        others = [d for d in range(parameter.ndim) if d != dim]
        is_same = all(parameter.size(d) == small.size(d) for d in others)
        yield _Rule(parameter, small.detach(), width, is_output=dim is not None and is_same)


def _input_dim(owner: torch.nn.Module, parameter: torch.Tensor) -> int | None:
    """Returns the dimension that a layer sums over; None for a vector."""
    if parameter.ndim < 2:
        return None
    return 0 if type(owner).__name__ == "Conv1D" else 1  # that of transformers is transposed


def _refuse_tied() -> None:
    raise ValueError(
        "MuP wants other weights of an embedding than of the output layer, and they are one here; "
        "untie them (tie_word_embeddings: false)."
    )


@torch.no_grad()
def _scale_weights(rule: _Rule) -> None:
    """Gives a parameter the size that the base's has, scaled by its rule."""
    wanted = _size(rule.base) / (rule.width if rule.is_output else math.sqrt(rule.width))
    size = _size(rule.parameter)
    if size > 0:
        rule.parameter.mul_(wanted / size)


def _size(tensor: torch.Tensor) -> float:
    return float(tensor.detach().float().square().mean().sqrt())


def _split_groups(optimizer: Optimizer, widths: dict[torch.nn.Parameter, float]) -> None:
    groups = []
    for group in optimizer.param_groups:
        by_width: dict[float, list[torch.nn.Parameter]] = {}
        for parameter in group["params"]:
            by_width.setdefault(widths.get(parameter, 1.0), []).append(parameter)
        for width, parameters in by_width.items():
            ratio = math.sqrt(width) if group.get("is_orthogonalised") else width
            part = {**group, "params": parameters, "lr": group["lr"] / ratio}
            if "initial_lr" in group:
                part["initial_lr"] = group["initial_lr"] / ratio
            elif "weight_decay" in group:  # torch multiplies it by the learning rate
                part["weight_decay"] = group["weight_decay"] * ratio
            groups.append(part)
    optimizer.param_groups[:] = groups
