"""``block_overrides``: layers that differ from the rest, and whose keys and values they reuse."""

import copy
import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from llmfoundry.utils.warnings import ExperimentalWarning

__all__ = ["ALLOWED_OVERRIDES", "BlockPlan", "expand_order", "plan_blocks"]

log = logging.getLogger(__name__)

REUSE_KEYS = ("reuse_kv_layer_idx", "reuse_kv_x_layer_idx")

ALLOWED_OVERRIDES: dict[str, Any] = {
    "attn_config": {
        "sliding_window_size": None,
        "reuse_kv_layer_idx": None,
        "reuse_kv_x_layer_idx": None,
        "attn_temperature_tuning": {"floor_scale": None, "attn_scale": None},
        "nope": None,
    },
}
"""What an override may set."""


class BlockPlan:
    """The arguments of every block, and the layers whose state others reuse.

    Args:
        block_args: One dictionary of ``MPTBlock`` arguments a layer.
        state_cache_layers: By kind of reuse, the layers whose state must be kept.
    """

    def __init__(
        self, block_args: list[dict[str, Any]], state_cache_layers: dict[str, set[int]]
    ) -> None:
        self.block_args = block_args
        self.state_cache_layers = state_cache_layers


def expand_order(order: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the override's name for each layer that ``order`` describes.

    Raises:
        ValueError: An item has neither or both of ``name`` and ``order``.
    """
    names: list[str] = []
    for item in order:
        if ("name" in item) == ("order" in item):
            raise ValueError(
                f"An item of block_overrides.order takes a name or an order, but got {dict(item)}."
            )
        inner = [item["name"]] if "name" in item else expand_order(item["order"])
        names.extend(inner * item.get("repeat", 1))
    return names


def _check_allowed(override: Mapping[str, Any], allowed: Mapping[str, Any]) -> None:
    unknown = override.keys() - allowed.keys()
    if unknown:
        raise KeyError(f"Overriding {unknown} is not supported. Choose from {sorted(allowed)}.")
    for key, value in override.items():
        if isinstance(value, Mapping) and isinstance(allowed[key], Mapping):
            _check_allowed(value, allowed[key])


def _merge(block_args: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``block_args`` with ``override`` laid over it, dictionary by dictionary."""
    merged = dict(block_args)
    for key, value in override.items():
        default = block_args.get(key)
        if default is not None and not isinstance(value, type(default)):
            raise ValueError(
                "Override config should have same value types as the original config. Found "
                f"override_config[{key}]={value} vs block_args[{key}]={default}."
            )
        merged[key] = _merge(default, value) if isinstance(default, Mapping) else value
    return merged


def _absolute_index(relative: int, layer: int) -> int:
    if relative >= 0:
        raise ValueError(
            f"The relative index of kv layer to reuse should be negative, but got {relative}."
        )
    index = layer + relative
    if index < 0:
        raise ValueError(
            f"The absolute index of kv layer to reuse, {index} should be non-negative."
        )
    return index


def _resolve_reuse(
    override: dict[str, Any], layer: int, roots: dict[str, dict[int, int]]
) -> dict[str, Any]:
    """Makes the reused layer absolute; where that layer itself reuses, takes its root."""
    attn_config = override.get("attn_config", {})
    kinds = [key for key in REUSE_KEYS if attn_config.get(key) is not None]
    if len(kinds) > 1:
        raise ValueError(f"An override takes one of {' and '.join(REUSE_KEYS)}, not both.")
    for kind in kinds:
        index = _absolute_index(attn_config[kind], layer)
        root = roots[kind].get(index, index)
        roots[kind][layer] = root
        override = copy.deepcopy(override)
        override["attn_config"][kind] = root
    return override


def _check_nope(overrides: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    if not any(o.get("attn_config", {}).get("nope") for o in overrides.values()):
        return
    if config["attn_config"]["alibi"]:
        raise ValueError(
            "nope in block_overrides cannot be used with alibi, which is one bias for all layers. "
            "Use rope."
        )


def plan_blocks(config: Mapping[str, Any]) -> BlockPlan:
    """Returns the blocks' arguments for a model's configuration, with its overrides laid over.

    Args:
        config: ``MPTConfig.to_dict()``.

    Raises:
        KeyError: An override sets what none may set.
        ValueError: The overrides do not fit the model, or each other.
    """
    n_layers, block_overrides = config["n_layers"], config.get("block_overrides")
    block_args = {key: value for key, value in config.items() if key != "block_overrides"}
    if not block_overrides:
        return BlockPlan([block_args] * n_layers, {})
    warnings.warn(ExperimentalWarning("block_overrides"), stacklevel=3)
    names = expand_order(block_overrides["order"]) * block_overrides.get("repeat", 1)
    if len(names) != n_layers:
        raise ValueError(
            f"The specified block overrides do not match the number of layers: {len(names)} vs "
            f"{n_layers}."
        )
    overrides = {"default": {}, **block_overrides["overrides"]}
    _check_nope(overrides, config)
    roots: dict[str, dict[int, int]] = {key: {} for key in REUSE_KEYS}
    planned = []
    for layer, name in enumerate(names):
        if name not in overrides:
            raise ValueError(
                f"block_overrides.order names {name!r}, which block_overrides.overrides lacks; it "
                f"has {sorted(overrides)}."
            )
        _check_allowed(overrides[name], ALLOWED_OVERRIDES)
        override = _resolve_reuse(overrides[name], layer, roots)
        log.info("Layer %d: %s %s", layer, name, override)
        planned.append(_merge(block_args, override))
    return BlockPlan(planned, {key: set(by.values()) for key, by in roots.items() if by})
