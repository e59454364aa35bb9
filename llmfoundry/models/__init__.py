"""Face of the models."""

from composer.utils.lazy import handed_on

__all__ = [
    "ComposerHFCausalLM",
    "ComposerHFT5",
    "ComposerMPTCausalLM",
    "ContrastiveModel",
    "FMAPICasualLMEvalWrapper",
    "FMAPIChatAPIEvalWrapper",
    "FinetuneEmbeddingModel",
    "MPTConfig",
    "MPTForCausalLM",
    "MPTModel",
    "MPTPreTrainedModel",
    "OpenAICausalLMEvalWrapper",
    "OpenAIChatAPIEvalWrapper",
]

_OPENAI = "llmfoundry.models.inference_api_wrapper.openai_causal_lm"

__getattr__ = handed_on(
    {
        "ComposerHFCausalLM": "llmfoundry.models.hf.hf_causal_lm",
        "ComposerHFT5": "llmfoundry.models.hf.hf_t5",
        "ComposerMPTCausalLM": "llmfoundry.models.mpt.composer_mpt",
        "ContrastiveModel": "llmfoundry.models.llm_embed.contrastive_model",
        "FMAPICasualLMEvalWrapper": "llmfoundry.models.inference_api_wrapper.fmapi",
        "FMAPIChatAPIEvalWrapper": "llmfoundry.models.inference_api_wrapper.fmapi",
        "FinetuneEmbeddingModel": "llmfoundry.models.llm_embed.finetune_embedding_model",
        "MPTConfig": "llmfoundry.models.mpt.config",
        "MPTForCausalLM": "llmfoundry.models.mpt.causal_lm",
        "MPTModel": "llmfoundry.models.mpt.backbone",
        "MPTPreTrainedModel": "llmfoundry.models.mpt.backbone",
        "OpenAICausalLMEvalWrapper": _OPENAI,
        "OpenAIChatAPIEvalWrapper": _OPENAI,
    }
)
