"""Which modules of which blocks are checkpointed (``activation_checkpointing_target``)."""

import re
from collections.abc import Iterable
from typing import Any

import torch

from llmfoundry.layers_registry import (
    attention_classes,
    ffns,
    ffns_with_megablocks,
    ffns_with_norm,
    norms,
)
from llmfoundry.models.layers.blocks import FusedNormAttentionNorm, MPTBlock
from llmfoundry.models.layers.dmoe import dMoE
from llmfoundry.models.layers.ffn import MPTGLU, MPTMLP
from llmfoundry.models.layers.mb_moe import MegaBlocksMoE

__all__ = [
    "build_act_ckpt_mod_to_blocks",
    "check_mapping_blocks_overlap",
    "get_act_ckpt_module",
    "pass_on_block_idx",
]

ALL_BLOCKS = -1
"""Stands for every block in a module's list."""

FFN_CLASSES: dict[str, type[torch.nn.Module]] = {
    "mptmlp": MPTMLP,
    "mptglu": MPTGLU,
    "torch_dmoe": dMoE,
    "mb_moe": MegaBlocksMoE,
    "mb_dmoe": MegaBlocksMoE,
}


def pass_on_block_idx(parent: torch.nn.Module) -> None:
    """Tells each descendant the ``block_idx`` and ``max_block_idx`` of its block."""
    if not hasattr(parent, "block_idx") or not hasattr(parent, "max_block_idx"):
        return
    for child in parent.children():
        child.block_idx = parent.block_idx
        child.max_block_idx = parent.max_block_idx
        pass_on_block_idx(child)


def get_act_ckpt_module(name: str) -> type[torch.nn.Module] | Any:
    """Returns the class of the modules that ``name`` names.

    Raises:
        ValueError: It names none.
    """
    if name.lower() == "mptblock":
        return MPTBlock
    if name == "norm_attn_norm":
        return FusedNormAttentionNorm
    for registry in (attention_classes, norms):
        if name in registry:
            return registry.get(name)
    if name in FFN_CLASSES:
        return FFN_CLASSES[name]
    for registry in (ffns, ffns_with_norm, ffns_with_megablocks):
        if name in registry and isinstance(registry.get(name), type):
            return registry.get(name)
    raise ValueError(
        f"{name!r} (activation_checkpointing_target) is no module that can be checkpointed. Use "
        f"mptblock, norm_attn_norm, or one of {[*attention_classes.names(), *FFN_CLASSES]} or "
        f"{norms.names()}."
    )


def _parse_blocks(text: str, max_block_idx: int) -> list[int]:
    """Returns the blocks that a list such as ``first-2, last-1, range-4-6`` names."""
    total = max_block_idx + 1
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        if match := re.fullmatch(r"first-(\d+)", part):
            found += range(min(int(match[1]), total))
        elif match := re.fullmatch(r"last-(\d+)", part):
            found += range(max(total - int(match[1]), 0), total)
        elif match := re.fullmatch(r"middle-(\d+)", part):
            start = max(max_block_idx // 2 - int(match[1]) // 2, 0)
            found += range(start, min(start + int(match[1]), total))
        elif match := re.fullmatch(r"range-(\d+)-(\d+)", part):
            found += range(int(match[1]), min(int(match[2]), total))
        else:
            raise ValueError(
                f"Invalid layer string {part!r} in activation_checkpointing_target: use first-n, "
                "last-n, middle-n or range-i-j."
            )
    return found


def get_target_block_list(blocks: Any, max_block_idx: int) -> list[int]:
    """Returns block indices for a number (the first n), a string, or a list of both.

    Raises:
        ValueError: ``blocks`` is none of these.
    """
    if isinstance(blocks, int) and not isinstance(blocks, bool):
        return list(range(blocks))
    if isinstance(blocks, str):
        return _parse_blocks(blocks, max_block_idx)
    if isinstance(blocks, (list, tuple)):
        found: list[int] = []
        for block in blocks:
            found += (
                [block] if isinstance(block, int) else get_target_block_list(block, max_block_idx)
            )
        return sorted(set(found))
    raise ValueError(
        "activation_checkpointing_target: blocks are a number, a string or a list, but got "
        f"{type(blocks).__name__}."
    )


def build_act_ckpt_mod_to_blocks(
    act_ckpt_target: Any, top_module: type[torch.nn.Module], max_block_idx: int
) -> dict[Any, list[int]]:
    """Returns, by module class, the blocks in which it is checkpointed; ``[-1]`` for all.

    Args:
        act_ckpt_target: The model key: nothing, a name, names, or blocks by name.
        top_module: What is checkpointed if no name is given.
        max_block_idx: Index of the last block.

    Raises:
        ValueError: A name or a list of blocks cannot be read.
    """
    if not act_ckpt_target:
        return {top_module: [ALL_BLOCKS]}
    if isinstance(act_ckpt_target, str):
        return {get_act_ckpt_module(act_ckpt_target): [ALL_BLOCKS]}
    if isinstance(act_ckpt_target, dict):
        return {
            get_act_ckpt_module(name): (
                [ALL_BLOCKS]
                if blocks == ALL_BLOCKS
                else get_target_block_list(blocks, max_block_idx)
            )
            for name, blocks in act_ckpt_target.items()
        }
    if isinstance(act_ckpt_target, Iterable):
        return {get_act_ckpt_module(name): [ALL_BLOCKS] for name in act_ckpt_target}
    raise ValueError(
        "activation_checkpointing_target is a name, a list of names or a dictionary of blocks by "
        f"name, but got {act_ckpt_target!r}."
    )


def check_mapping_blocks_overlap(mapping: dict[Any, list[int]], max_block_idx: int) -> None:
    """Refuses a block that stands under two modules, one of which may contain the other.

    Raises:
        ValueError: There is such a block.
    """
    seen: set[int] = set()
    for blocks in mapping.values():
        blocks = range(max_block_idx + 1) if ALL_BLOCKS in blocks else blocks
        twice = seen.intersection(blocks)
        if twice:
            raise ValueError(
                f"Block {min(twice)} is duplicated in activation_checkpointing_target. A block may "
                "be listed under one module."
            )
        seen.update(blocks)
