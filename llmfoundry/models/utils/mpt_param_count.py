"""How many parameters an MPT has, and how many of them one token uses."""

from typing import Any

import torch

__all__ = ["mpt_get_active_params", "mpt_get_total_params"]


def mpt_get_total_params(mpt_model: Any) -> int:
    """Returns the number of parameters; tied weights count once."""
    return sum(param.numel() for param in mpt_model.parameters())


def mpt_get_active_params(mpt_model: Any, of_frozen: bool = False) -> int:
    """Returns the parameters in a token's matrix products: all but what only is looked up.

    That is an untied input embedding, and the tables of value embeddings. Of the experts of mb_moe
    and mb_dmoe a token uses its top k; those of torch_dmoe all count, as they always did.

    Args:
        mpt_model: The model.
        of_frozen: Whether only parameters that get no gradient count.
    """

    def count(module: torch.nn.Module) -> int:
        return sum(p.numel() for p in module.parameters() if not (of_frozen and p.requires_grad))

    total = count(mpt_model)
    if not mpt_model.config.tie_word_embeddings:
        total -= count(mpt_model.model.transformer.wte)
    for module in mpt_model.model.transformer.blocks.modules():
        if isinstance(module, torch.nn.Embedding):
            total -= count(module)
        elif getattr(module, "gives_routing", False):
            ffn: Any = module
            experts = count(ffn.experts.mlp)
            total -= experts - experts * ffn.router.moe_top_k // ffn.router.moe_num_experts
    return total
