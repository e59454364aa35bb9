"""Public path of the MPT models; their homes are ``backbone``, ``causal_lm``, ``composer_mpt``."""

from llmfoundry.models.layers.flash import (
    gen_attention_mask_in_length,
    gen_flash_attn_padding_info,
)
from llmfoundry.models.layers.rotary import gen_rotary_embedding
from llmfoundry.models.mpt.backbone import MPTModel, MPTPreTrainedModel
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM, compute_loss_from_logits

__all__ = [
    "ComposerMPTCausalLM",
    "MPTForCausalLM",
    "MPTModel",
    "MPTPreTrainedModel",
    "compute_loss_from_logits",
    "gen_attention_mask_in_length",
    "gen_flash_attn_padding_info",
    "gen_rotary_embedding",
]
