"""``algorithms: {preset: NAME}``: a stack of methods laid under what a recipe says itself."""

from typing import Any

from composer.algorithms.presets import Preset, find_preset, print_changes
from llmfoundry import registry

__all__ = ["expand_preset"]

REPLACED = "decoupled_adamw"
"""The optimizer that a preset may replace: what presets were measured against."""


def expand_preset(cfg: dict[str, Any]) -> dict[str, Any]:
    """Puts a preset's methods in the place of its name, in the recipe itself; prints each change.

    What the recipe says itself stays. The learning rate and the decay are the recipe's.

    Raises:
        ValueError: If there is no such preset, or it does not fit the recipe.
    """
    algorithms = cfg.get("algorithms")
    if not isinstance(algorithms, dict) or "preset" not in algorithms:
        return cfg
    name = algorithms.pop("preset")
    try:
        preset = find_preset(name)
        lines = [
            *_add_algorithms(algorithms, preset, name),
            *_change_optimizer(cfg.get("optimizer"), preset, name),
        ]
    except ValueError as error:
        raise ValueError(f"algorithms.preset: {error}") from error
    print_changes(name, lines)
    return cfg


def _add_algorithms(algorithms: dict[str, Any], preset: Preset, name: str) -> list[str]:
    if missing := sorted(each for each in preset.algorithms if each not in registry.algorithms):
        raise ValueError(
            f"{name} has {', '.join(missing)}, which recipes cannot name; it is for programs: "
            f"Trainer(algorithms=composer.algorithms.preset({name!r}))."
        )
    lines = []
    for each, settings in preset.algorithms.items():
        if each in algorithms:
            lines.append(f"algorithms.{each}: stays {algorithms[each]}, as the recipe says")
        else:
            algorithms[each] = dict(settings)
            lines.append(f"algorithms.{each}: {algorithms[each]}")
    return lines


def _change_optimizer(optimizer: Any, preset: Preset, name: str) -> list[str]:
    if not preset.optimizer:
        return []
    current = optimizer.get("name") if isinstance(optimizer, dict) else None
    if current not in (REPLACED, preset.optimizer["name"]):
        raise ValueError(
            f"{name} has the optimizer {preset.optimizer['name']!r} in the place of {REPLACED!r}, "
            f"but optimizer.name is {current!r}. Set it to {REPLACED!r}, or leave the preset out "
            "and name the algorithms that you want."
        )
    lines = []
    for key, value in preset.optimizer.items():
        if key in optimizer and key != "name":
            lines.append(f"optimizer.{key}: stays {optimizer[key]}, as the recipe says")
        elif optimizer.get(key) != value:
            lines.append(f"optimizer.{key}: {value}")
            optimizer[key] = value
    return lines
