"""A public path of LLM Foundry over `llmfoundry.utils.meta_init_context`."""

from llmfoundry.utils.meta_init_context import init_empty_weights, init_on_device

__all__ = ["init_empty_weights", "init_on_device"]
