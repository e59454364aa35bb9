"""Face of the models."""

from composer.utils.lazy import handed_on

__all__ = [
    "ComposerHFCausalLM",
    "ComposerHFT5",
    "ComposerMPTCausalLM",
    "ContrastiveModel",
    "FinetuneEmbeddingModel",
    "MPTConfig",
    "MPTForCausalLM",
    "MPTModel",
    "MPTPreTrainedModel",
]

__getattr__ = handed_on(
    {
        "ComposerHFCausalLM": "llmfoundry.models.hf.hf_causal_lm",
        "ComposerHFT5": "llmfoundry.models.hf.hf_t5",
        "ComposerMPTCausalLM": "llmfoundry.models.mpt.composer_mpt",
        "ContrastiveModel": "llmfoundry.models.llm_embed.contrastive_model",
        "FinetuneEmbeddingModel": "llmfoundry.models.llm_embed.finetune_embedding_model",
        "MPTConfig": "llmfoundry.models.mpt.config",
        "MPTForCausalLM": "llmfoundry.models.mpt.causal_lm",
        "MPTModel": "llmfoundry.models.mpt.backbone",
        "MPTPreTrainedModel": "llmfoundry.models.mpt.backbone",
    }
)
