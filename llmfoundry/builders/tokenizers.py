"""Tokenizers from a folder, the hub or the registry."""

import os
from pathlib import Path
from typing import Any

from composer.utils import dist
from llmfoundry import registry
from llmfoundry.utils.registry_utils import construct_from_registry

__all__ = ["build_tokenizer"]

UNLIMITED_LENGTH = int(1e30)


def build_tokenizer(tokenizer_name: str, tokenizer_kwargs: dict[str, Any]) -> Any:
    """Builds a tokenizer.

    Args:
        tokenizer_name: A registered tokenizer, a folder that holds one, or a name on the hub.
        tokenizer_kwargs: Its arguments. ``model_max_length`` is unlimited unless given, whatever
            the tokenizer's own files say.
    """
    # Its threads do not survive the fork into loader workers; the workers are the parallelism.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    # One process a node fetches; the others then find the files in the cache.
    with dist.run_local_rank_zero_first():
        if tokenizer_name in registry.tokenizers:
            tokenizer = construct_from_registry(
                name=tokenizer_name, registry=registry.tokenizers, kwargs=tokenizer_kwargs
            )
        else:
            tokenizer = _from_files(tokenizer_name, tokenizer_kwargs)
    if getattr(tokenizer, "eos_token", None) is None:
        raise ValueError(
            f"The tokenizer {tokenizer_name} must have an eos_token. Give it one with "
            "tokenizer.kwargs.eos_token, or use another tokenizer."
        )
    return tokenizer


def _from_files(name: str, kwargs: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    path = Path(name).expanduser()
    looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_local and not path.is_dir():
        raise FileNotFoundError(
            f"Tokenizer folder {name!r} does not exist (looked in {Path.cwd()}). Give a folder "
            "with tokenizer files, or a name on the hub such as 'EleutherAI/gpt-neox-20b'."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path) if path.is_dir() else name, **kwargs)
    except OSError as error:
        raise OSError(
            f"Tokenizer {name!r} is no folder here ({Path.cwd()}), is not in the local cache, and "
            "could not be fetched from the hub. Without network access, download it elsewhere "
            f"(AutoTokenizer.from_pretrained({name!r}).save_pretrained('FOLDER')), copy the folder "
            f"and set tokenizer.name to its path. The loader said: {error}"
        ) from error
    # Files often hold the context length of some model, which silently cuts text to be packed.
    tokenizer.model_max_length = kwargs.get("model_max_length", UNLIMITED_LENGTH)
    return tokenizer
