"""Tokenizers by name; apart from what tokenises, whose processes need nothing of the registry."""

from typing import Any

from llmfoundry import registry
from llmfoundry.utils.registry_utils import construct_from_registry

__all__ = ["load_tokenizer"]


def load_tokenizer(name: str, kwargs: dict[str, Any] | None = None) -> Any:
    """Loads a tokenizer without a limit on the length of a text.

    Args:
        name: A registered tokenizer, a folder, or a name on the hub.
        kwargs: Arguments of the registered class, or of ``AutoTokenizer.from_pretrained``.

    Raises:
        OSError: There is none of that name.
    """
    from transformers import AutoTokenizer

    kwargs = kwargs or {}
    if name in registry.tokenizers:
        tokenizer = construct_from_registry(name, registry.tokenizers, kwargs=kwargs)
    else:
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, **kwargs)
        except OSError as error:
            raise OSError(
                f"Tokenizer {name!r} is neither registered, nor a folder here, nor in the local "
                f"cache, and could not be fetched from the hub. The loader said: {error}"
            ) from error
    # A document may be longer than any context; the limit would only warn about that.
    tokenizer.model_max_length = int(1e30)
    return tokenizer
