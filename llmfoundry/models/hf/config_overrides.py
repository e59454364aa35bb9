"""Changes to a transformers configuration by a recipe's ``config_overrides``."""

import difflib
from collections.abc import Mapping
from typing import Any

__all__ = ["get_hf_config_value", "set_config_overrides"]


def get_hf_config_value(config: Any, key: str) -> Any:
    """Returns a value of a configuration, which may be a mapping; None if it has none."""
    return config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)


def set_config_overrides(config: Any, overrides: Mapping[str, Any]) -> None:
    """Sets values of a ``PretrainedConfig`` in place; below mappings and configurations, by key.

    Args:
        config: The configuration.
        overrides: New values. A mapping changes the keys that it names and leaves their siblings.

    Raises:
        ValueError: If the configuration has no such value.
    """
    for key, value in overrides.items():
        if not hasattr(config, key):
            raise ValueError(
                f'config does not have attribute "{key}" to override ({key}: {value}). '
                + _near(key, config.to_dict())
            )
        current = getattr(config, key)
        if isinstance(current, Mapping) and isinstance(value, Mapping):
            setattr(config, key, _laid_over(key, current, value))
        elif hasattr(current, "to_dict"):
            if not isinstance(value, Mapping):
                raise ValueError(
                    f"Expected override for {key} to be a mapping of its settings, since it is a "
                    f"{type(current).__name__}; got {value!r}."
                )
            set_config_overrides(current, value)
        else:
            setattr(config, key, dict(value) if isinstance(value, Mapping) else value)
    _cut_layer_types(config, overrides)


def _laid_over(name: str, current: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    # Kinds of rotary scaling differ in their keys: another kind is another mapping.
    kinds = {"rope_type", "type"}
    if kinds & value.keys():
        return dict(value) if "rope_theta" in value else {**_theta(current), **value}
    if unknown := sorted(value.keys() - current.keys()):
        raise ValueError(
            f'config does not have keys {unknown} below "{name}" to override. '
            + _near(unknown[0], current)
        )
    return {**current, **value}


def _theta(current: Mapping[str, Any]) -> dict[str, Any]:
    return {key: current[key] for key in ("rope_theta",) if key in current}


def _near(key: str, known: Mapping[str, Any]) -> str:
    found = difflib.get_close_matches(key, known, n=1)
    return f"Did you mean {found[0]!r}?" if found else f"It has: {', '.join(sorted(known))}."


def _cut_layer_types(config: Any, overrides: Mapping[str, Any]) -> None:
    """Keeps the list of kinds of layers as long as there are layers."""
    kinds = getattr(config, "layer_types", None)
    n_layers = getattr(config, "num_hidden_layers", None)
    if kinds is None or n_layers is None or "layer_types" in overrides or len(kinds) == n_layers:
        return
    if len(kinds) < n_layers and len(set(kinds)) > 1:
        raise ValueError(
            f"num_hidden_layers={n_layers} is more than the {len(kinds)} layers whose kinds the "
            "configuration lists; set layer_types too."
        )
    config.layer_types = list(kinds[:n_layers]) + [kinds[0]] * (n_layers - len(kinds))
