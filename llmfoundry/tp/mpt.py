"""Splits whole blocks of an MPT: attention by heads, feed-forward layers by their hidden width."""

from typing import Any

import torch
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from llmfoundry.tp.heads import FusedHeads, WholeHeads, norm_of_each_head

__all__ = ["mpt_tp_strategy"]


def mpt_tp_strategy(model: torch.nn.Module) -> dict[str, Any]:
    """Returns the plan that splits attention and feed-forward layers of an MPT.

    Norms and the token embedding stay whole. All ranks of a group work on one batch.

    Args:
        model: An MPT, or what holds one.

    Raises:
        ValueError: If the model has a layer that cannot be split.
    """
    plan: dict[str, Any] = {}
    for name, module in model.named_modules():
        if hasattr(module, "keep_heads"):
            plan.update(_attention(name, module))
        elif name.split(".")[-1] == "ffn":
            plan.update(_ffn(name, module))
    if not plan:
        raise ValueError(
            "the tensor-parallel strategy 'mpt' found no attention and no ffn of an MPT; for a "
            "Llama-like Hugging Face model use the strategy 'llama'"
        )
    return plan


def _attention(name: str, attention: Any) -> dict[str, Any]:
    if attention.qk_ln:
        raise ValueError(
            f"{name} has qk_ln: true, a norm over all heads together, which the tensor-parallel "
            "strategy 'mpt' cannot split; use qk_gn: true, or no tensor parallelism"
        )
    q_width = attention.n_heads * attention.head_dim
    kv_width = attention.kv_n_heads * attention.head_dim
    styles: dict[str, Any] = {
        "": WholeHeads(attention.n_heads, attention.kv_n_heads),
        "Wqkv": FusedHeads([q_width, kv_width, kv_width]),
        "Wq": ColwiseParallel(),
        "Wk": ColwiseParallel(),
        "Wv": ColwiseParallel(),
        "q_ln": norm_of_each_head(),
        "k_ln": norm_of_each_head(),
        "out_proj": RowwiseParallel(),
        "value_embedding.table": ColwiseParallel(),
        "value_embedding.gate": ColwiseParallel(),
    }
    parts = {part for part, _ in attention.named_modules()}
    return {f"{name}.{part}".rstrip("."): style for part, style in styles.items() if part in parts}


def _ffn(name: str, ffn: torch.nn.Module) -> dict[str, Any]:
    styles: dict[str, Any] = {
        "gate_proj": ColwiseParallel(),
        "up_proj": ColwiseParallel(),
        "down_proj": RowwiseParallel(),
    }
    parts = {part for part, _ in ffn.named_children()}
    owners = {part.split(".")[0] for part, _ in ffn.named_parameters()}
    if not {"up_proj", "down_proj"} <= parts or owners - styles.keys():
        raise ValueError(
            f"{name} is a {type(ffn).__name__} with {sorted(owners)}; the tensor-parallel strategy "
            "'mpt' splits ffn_type mptmlp and mptglu"
        )
    return {f"{name}.{part}": style for part, style in styles.items() if part in parts}
