"""Encoders that embed texts already, trained on: ``finetune_embedding_model``."""

from typing import Any

import torch
import transformers

from composer.utils import dist
from llmfoundry.models.llm_embed.contrastive_model import ContrastiveModel

__all__ = ["FinetuneEmbeddingModel"]


class FinetuneEmbeddingModel(ContrastiveModel):
    """An embedding model of transformers (``AutoModel``, no language-model head), trained on.

    The arguments are those of :class:`ContrastiveModel`; there must be a name.
    """

    def build_mpt(self, kwargs: dict[str, Any]) -> Any:
        """Is refused: there is nothing to train on.

        Raises:
            ValueError: Always.
        """
        raise ValueError("finetune_embedding_model needs pretrained_model_name_or_path.")

    def build_pretrained(self, name: str, *, hub: dict[str, Any], **settings: Any) -> Any:
        """Loads an encoder.

        Raises:
            ValueError: If a setting is one of language models.
        """
        idle = [key for key in ("config_overrides", "load_in_8bit", "lora") if settings[key]]
        if idle or not settings["pretrained"] or settings["init_device"] != "cpu":
            raise ValueError(
                f"finetune_embedding_model takes a whole pretrained model on the cpu; leave out "
                f"{idle or ['pretrained', 'init_device']}."
            )
        attention = {"attn_implementation": settings["attn_implementation"]}
        with dist.run_local_rank_zero_first():
            return transformers.AutoModel.from_pretrained(
                name, dtype=torch.float32, **attention, **hub
            )

    def _hidden_states(
        self, ids: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state, None
