"""What MPT models return: transformers' outputs, and how tokens were spread over experts."""

from dataclasses import dataclass

from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from llmfoundry.models.layers.mb_moe import Routing

__all__ = ["MPTCausalLMOutput", "MPTModelOutput"]


@dataclass
class MPTModelOutput(BaseModelOutputWithPast):
    """Hidden states, and in training the routing of a mixture of experts."""

    routing: Routing | None = None


@dataclass
class MPTCausalLMOutput(CausalLMOutputWithPast):
    """Logits and the loss of the text alone, and in training the routing of a mixture."""

    routing: Routing | None = None
