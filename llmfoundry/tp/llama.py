"""Splits whole layers of Hugging Face models that are built as Llama is."""

from typing import Any

import torch
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from llmfoundry.tp.heads import WholeHeads, norm_of_each_head

__all__ = ["llama_tp_strategy"]

_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj"}


def llama_tp_strategy(model: torch.nn.Module) -> dict[str, Any]:
    """Returns the plan that splits attention, feed-forward layers and the ends of a Llama.

    So are Mistral, Qwen 2 and 3, Gemma and others built. Norms stay whole, and so do embedding and
    head where they share a weight. All ranks of a group work on one batch.

    Args:
        model: A Hugging Face model, or what holds one.

    Raises:
        ValueError: If the model is built differently.
    """
    plan: dict[str, Any] = {}
    for name, module in model.named_modules():
        last = name.split(".")[-1]
        if last == "self_attn":
            plan.update(_attention(name, module))
        elif last == "mlp":
            plan.update(_mlp(name, module))
    if not plan:
        raise ValueError(
            "the tensor-parallel strategy 'llama' found no self_attn and no mlp in the model; for "
            "an MPT use the strategy 'mpt'"
        )
    return plan | _ends(model)


def _owners(module: torch.nn.Module) -> set[str]:
    return {name.split(".")[0] for name, _ in module.named_parameters()}


def _attention(name: str, attention: Any) -> dict[str, Any]:
    owners = _owners(attention)
    if not owners >= _ATTENTION or owners - _ATTENTION - _HEAD_NORMS:
        _refuse(name, attention, owners)
    width = attention.head_dim
    heads = attention.q_proj.out_features // width
    plan: dict[str, Any] = {name: WholeHeads(heads, attention.k_proj.out_features // width)}
    for part in sorted(owners & _HEAD_NORMS):
        if getattr(attention, part).weight.shape != (width,):
            raise ValueError(
                f"{name}.{part} is a norm over all heads together, which the tensor-parallel "
                "strategy 'llama' cannot split"
            )
        plan[f"{name}.{part}"] = norm_of_each_head()
    plan.update((f"{name}.{part}", ColwiseParallel()) for part in ("q_proj", "k_proj", "v_proj"))
    return plan | {f"{name}.o_proj": RowwiseParallel()}


def _mlp(name: str, mlp: torch.nn.Module) -> dict[str, Any]:
    if _owners(mlp) != _MLP:
        _refuse(name, mlp, _owners(mlp))
    return {
        f"{name}.gate_proj": ColwiseParallel(),
        f"{name}.up_proj": ColwiseParallel(),
        f"{name}.down_proj": RowwiseParallel(),
    }


def _ends(model: torch.nn.Module) -> dict[str, Any]:
    """Splits embedding and head by tokens, if they have a weight each."""
    embeddings = {n: m for n, m in model.named_modules() if n.split(".")[-1] == "embed_tokens"}
    heads = {n: m for n, m in model.named_modules() if n.split(".")[-1] == "lm_head"}
    weights = [id(module.weight) for module in (*embeddings.values(), *heads.values())]
    if len(weights) != len(set(weights)):
        return {}
    plan: dict[str, Any] = {name: RowwiseParallel(input_layouts=Replicate()) for name in embeddings}
    return plan | {name: ColwiseParallel(output_layouts=Replicate()) for name in heads}


def _refuse(name: str, module: torch.nn.Module, owners: set[str]) -> None:
    raise ValueError(
        f"{name} is a {type(module).__name__} with parameters in {sorted(owners)}; the "
        f"tensor-parallel strategy 'llama' splits {sorted(_ATTENTION)} and {sorted(_MLP)}, each a "
        "plain linear layer"
    )
