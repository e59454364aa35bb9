"""Hugging Face models, made ready for the trainer."""

from llmfoundry.models.hf.hf_fsdp import prepare_hf_model_for_fsdp

__all__ = ["prepare_hf_model_for_fsdp"]
