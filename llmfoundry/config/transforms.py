"""Registered changes of a recipe, applied before it is checked."""

from collections.abc import Callable
from typing import Any

from llmfoundry import registry

__all__ = ["Transform", "apply_transforms_to_config", "collect_transforms"]

Transform = Callable[[dict[str, Any]], dict[str, Any]]


def collect_transforms(transforms: list[str | Transform] | str | None) -> list[Transform]:
    """Looks up transforms: names, functions, ``"all"`` registered ones, or none."""
    if transforms is None:
        return []
    if transforms == "all":
        return list(registry.config_transforms.get_all().values())
    if not isinstance(transforms, list):
        raise ValueError(
            f"Invalid transforms: {transforms!r}. Give a list of names and functions, or 'all'."
        )
    found: list[Transform] = []
    for transform in transforms:
        if isinstance(transform, str):
            found.append(registry.config_transforms.get(transform))
        elif callable(transform):
            found.append(transform)
        else:
            raise ValueError(f"Invalid transform: {transform!r}. Give a name or a function.")
    return found


def apply_transforms_to_config(
    cfg: dict[str, Any], transforms: list[str | Transform] | str | None
) -> dict[str, Any]:
    """Passes a recipe through transforms, one after the other."""
    for transform in collect_transforms(transforms):
        cfg = transform(cfg)
    return cfg
