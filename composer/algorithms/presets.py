"""Stacks of methods that our own measurements support, by name (`docs/methods/presets.md`)."""

import difflib
import importlib
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from composer.core.algorithm import Algorithm
from composer.utils import dist

__all__ = ["PRESETS", "Preset", "find_preset", "preset"]


class Preset(NamedTuple):
    """Methods that go together."""

    algorithms: Mapping[str, Mapping[str, Any]]
    """Arguments by the names that recipes use, which are those of the folders here."""
    optimizer: Mapping[str, Any] = {}
    """What changes of a recipe's section ``optimizer``, if it is ``decoupled_adamw``."""


PRESETS: Mapping[str, Preset] = {
    "llm-fast": Preset(
        algorithms={"batch_size_warmup": {"schedule": {"0dur": 4, "0.1dur": 2, "0.3dur": 1}}},
        optimizer={"name": "decoupled_muon"},
    ),
    "vision-fast": Preset(
        algorithms={
            "channels_last": {},
            "weight_standardization": {},
            "label_smoothing": {"smoothing": 0.1},
        },
    ),
}


def find_preset(name: object) -> Preset:
    """Looks a preset up.

    Raises:
        ValueError: If there is none of this name; those that exist are listed.
    """
    if isinstance(name, str) and name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(str(name), PRESETS, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(PRESETS)}."
    raise ValueError(f"there is no preset {name!r}. {hint}")


def preset(name: str) -> list[Algorithm]:
    """Builds the algorithms of a preset and prints what they are.

    Recipes say ``algorithms: {preset: llm-fast}``, which sets the optimizer as well; in Python the
    optimizer is made by hand, and its settings are printed.

    Raises:
        ValueError: If there is no preset of this name.
    """
    found = find_preset(name)
    lines = [f"algorithms.{each}: {dict(settings)}" for each, settings in found.algorithms.items()]
    if found.optimizer:
        lines.append(f"not done here, use it as the optimizer: {dict(found.optimizer)}")
    print_changes(name, lines)
    return [_class_of(each)(**settings) for each, settings in found.algorithms.items()]


def _class_of(name: str) -> type[Algorithm]:
    """The algorithm that lives in a folder of :mod:`composer.algorithms`."""
    module = importlib.import_module(f"composer.algorithms.{name}.{name}")
    return next(
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and issubclass(kind, Algorithm)
        and kind.__module__ == module.__name__
    )


def print_changes(name: str, lines: list[str]) -> None:
    """Says once per run what a preset does."""
    if dist.get_global_rank() == 0:
        print("\n  ".join([f"preset {name}:", *lines]), flush=True)
