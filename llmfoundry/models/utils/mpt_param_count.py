"""How many parameters an MPT has, and how many of them one token uses."""

from typing import Any

import torch

__all__ = ["mpt_get_active_params", "mpt_get_total_params"]


def mpt_get_total_params(mpt_model: Any) -> int:
    """Returns the number of parameters; tied weights count once."""
    return sum(param.numel() for param in mpt_model.parameters())


def mpt_get_active_params(mpt_model: Any) -> int:
    """Returns the parameters in a token's matrix products: all but what only is looked up.

    That is an untied input embedding, and the tables of value embeddings. Of the experts of mb_moe
    and mb_dmoe a token uses its top k; those of torch_dmoe all count, as they always did.
    """
    total = mpt_get_total_params(mpt_model)
    if not mpt_model.config.tie_word_embeddings:
        total -= mpt_model.model.transformer.wte.weight.numel()
    for module in mpt_model.model.transformer.blocks.modules():
        if isinstance(module, torch.nn.Embedding):
            total -= module.weight.numel()
        elif getattr(module, "gives_routing", False):
            ffn: Any = module
            experts = sum(param.numel() for param in ffn.experts.mlp.parameters())
            total -= experts - experts * ffn.router.moe_top_k // ffn.router.moe_num_experts
    return total
