"""What a function for ALiBi needs: the registry to enter, and what it does to modules."""

import inspect
import typing
from collections.abc import Callable
from typing import Any

import torch

from composer.algorithms.alibi.attention_surgery_functions.bias import alibi_slopes

__all__ = [
    "AlibiReplacementFunction",
    "NoPositions",
    "PolicyRegistry",
    "policy_registry",
    "register_alibi",
    "zero_and_freeze_expand_position_embeddings",
]

AlibiReplacementFunction = Callable[[torch.nn.Module, int, int], torch.nn.Module | None]
"""Takes a module, its number among those of its class and the longest sequence; returns the module
that takes its place, which may be the same one, or None to leave it alone."""


class PolicyRegistry(dict[type[torch.nn.Module], AlibiReplacementFunction]):
    """What ALiBi does to modules, by class."""

    def register(
        self, *modules: type[torch.nn.Module]
    ) -> Callable[[AlibiReplacementFunction], AlibiReplacementFunction]:
        """Registers the decorated function for classes of modules.

        It is declared as ``(module: torch.nn.Module, module_index: int, max_sequence_length: int)``
        and may change the module in place.

        Args:
            modules: The classes.

        Raises:
            NameError: If its third parameter has another name.
            TypeError: If parameters are not annotated, or a class is not a module's.
            ValueError: If there is no class, one is registered already, or the parameters are not
                these.
        """
        if not modules:
            raise ValueError("Registering an ALiBi function takes at least one class of modules.")

        def registered(function: AlibiReplacementFunction) -> AlibiReplacementFunction:
            _check_signature(function)
            for module in modules:
                if not (isinstance(module, type) and issubclass(module, torch.nn.Module)):
                    raise TypeError(f"{module!r} is not a class of torch.nn.Module.")
                if module in self:
                    raise ValueError(f"An ALiBi function is registered for {module} already.")
            self.update(dict.fromkeys(modules, function))
            return function

        return registered


def _check_signature(function: Any) -> None:
    expected = (torch.nn.Module, int, int)
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != len(expected):
        raise ValueError(
            f"An ALiBi function takes module, module_index and max_sequence_length, not "
            f"{len(parameters)} parameters."
        )
    hints = typing.get_type_hints(function)
    for parameter, kind in zip(parameters, expected, strict=True):
        if hints.get(parameter.name) is not kind:
            raise TypeError(
                f"The parameter {parameter.name} of an ALiBi function must be annotated as "
                f"{kind.__name__}."
            )
    if parameters[2].name != "max_sequence_length":
        raise NameError(
            "The third parameter of an ALiBi function must be called max_sequence_length, not "
            f"{parameters[2].name}."
        )


policy_registry = PolicyRegistry()
"""The functions that `apply_alibi` uses; those for transformers enter when a model is changed."""


class NoPositions(torch.nn.Embedding):
    """Stands for a table of learned positions, under the name that it has in checkpoints.

    It is frozen, and gives zeros whatever a checkpoint, or what initialises a model, puts into it.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns zeros for each position."""
        return self.weight.new_zeros((*input.shape, self.embedding_dim))


def zero_and_freeze_expand_position_embeddings(
    module: torch.nn.Module, max_sequence_length: int, position_embedding_attribute: str
) -> None:
    """Takes the learned positions out of a module, and makes room for longer sequences.

    Args:
        module: The module that has the table of positions.
        max_sequence_length: How many rows the table is to have.
        position_embedding_attribute: The table's name, which may have dots.
    """
    table: Any = module.get_submodule(position_embedding_attribute)
    zeros = table.weight.new_zeros(max_sequence_length, table.embedding_dim)
    new = NoPositions.from_pretrained(zeros, padding_idx=table.padding_idx)
    module.set_submodule(position_embedding_attribute, new)


def register_alibi(
    module: torch.nn.Module, n_heads: int, max_token_length: int, causal: bool
) -> None:
    """Gives a module a buffer ``alibi``, the bias that its attention is to add to its scores.

    Args:
        module: The module.
        n_heads: How many heads its attention has.
        max_token_length: The longest sequence that it is to read.
        causal: Whether queries look back only. The bias is then ``[heads, 1, keys]``, larger for
            later keys; it is ``[1, heads, queries, keys]`` otherwise, smaller for distant ones.
    """
    slopes = alibi_slopes(n_heads)[:, None, None]
    positions = torch.arange(max_token_length)
    if causal:
        bias = slopes * positions
    else:
        bias = -slopes * (positions[:, None] - positions).abs()
        bias = bias[None]
    weight = next(module.parameters(), slopes)
    module.register_buffer("alibi", bias.to(weight.device))
