"""Recipes for language models: configuration, data, models, training, evaluation and export."""

from composer.utils.lazy import handed_on
from llmfoundry._version import __version__

__all__ = [
    "ComposerHFCausalLM",
    "ComposerMPTCausalLM",
    "DecoupledLionW",
    "MPTConfig",
    "MPTForCausalLM",
    "MPTModel",
    "MPTPreTrainedModel",
    "StreamingFinetuningDataset",
    "StreamingTextDataset",
    "__version__",
]

__getattr__ = handed_on(
    {
        "ComposerHFCausalLM": "llmfoundry.models.hf.hf_causal_lm",
        "ComposerMPTCausalLM": "llmfoundry.models.mpt.modeling_mpt",
        "MPTConfig": "llmfoundry.models.mpt.configuration_mpt",
        "MPTForCausalLM": "llmfoundry.models.mpt.modeling_mpt",
        "MPTModel": "llmfoundry.models.mpt.modeling_mpt",
        "MPTPreTrainedModel": "llmfoundry.models.mpt.modeling_mpt",
        "StreamingFinetuningDataset": "llmfoundry.data.finetuning.streaming_dataset",
        "StreamingTextDataset": "llmfoundry.data.text_data",
        "DecoupledLionW": "llmfoundry.optim.lion",
    }
    | {
        name: f"llmfoundry.{name}:"
        for name in (
            "algorithms",
            "callbacks",
            "cli",
            "data",
            "interfaces",
            "loggers",
            "metrics",
            "models",
            "optim",
            "tokenizers",
            "tp",
            "utils",
        )
    }
)
