"""Face of the Hugging Face models, made ready for the trainer."""

from composer.utils.lazy import handed_on

__all__ = [
    "BaseHuggingFaceModel",
    "ComposerHFCausalLM",
    "ComposerHFT5",
    "prepare_hf_model_for_fsdp",
]

__getattr__ = handed_on(
    {
        "BaseHuggingFaceModel": "llmfoundry.models.hf.hf_base",
        "ComposerHFCausalLM": "llmfoundry.models.hf.hf_causal_lm",
        "ComposerHFT5": "llmfoundry.models.hf.hf_t5",
        "prepare_hf_model_for_fsdp": "llmfoundry.models.hf.hf_fsdp",
    }
)
