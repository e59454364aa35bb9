"""Face of the models."""

from composer.utils.lazy import handed_on

__all__ = [
    "ComposerMPTCausalLM",
    "MPTConfig",
    "MPTForCausalLM",
    "MPTModel",
    "MPTPreTrainedModel",
]

__getattr__ = handed_on(
    {
        "ComposerMPTCausalLM": "llmfoundry.models.mpt.composer_mpt",
        "MPTConfig": "llmfoundry.models.mpt.config",
        "MPTForCausalLM": "llmfoundry.models.mpt.causal_lm",
        "MPTModel": "llmfoundry.models.mpt.backbone",
        "MPTPreTrainedModel": "llmfoundry.models.mpt.backbone",
    }
)
