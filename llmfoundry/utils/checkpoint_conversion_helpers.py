"""The tokenizer out of a checkpoint."""

import contextlib
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from composer.models.hf_metadata import load_tokenizer_from_saved_state

__all__ = ["get_hf_tokenizer_from_composer_state_dict", "load_tokenizer"]


def get_hf_tokenizer_from_composer_state_dict(
    state_dict: dict[str, Any], trust_remote_code: bool, tokenizer_save_dir: str | None = None
) -> Any | None:
    """Returns the tokenizer that a checkpoint holds, or None if it holds none.

    Args:
        state_dict: The content of a checkpoint.
        trust_remote_code: Whether code that the tokenizer carries may run.
        tokenizer_save_dir: Where its files are written, by default a new folder
            ``tokenizer-save-dir-XXXXXX`` in the current one.

    Raises:
        RuntimeError: It is no checkpoint of a Hugging Face model.
        ValueError: The tokenizer needs code, which may not run.
    """
    if "state" not in state_dict:
        raise RuntimeError(f"The checkpoint has no entry 'state', only {sorted(state_dict)}.")
    if "huggingface" not in state_dict["state"].get("integrations", {}):
        raise RuntimeError(
            "The checkpoint has no state/integrations/huggingface: it was not saved from a "
            "HuggingFaceModel, so there is no tokenizer in it."
        )
    if tokenizer_save_dir is None:
        ending = "".join(random.SystemRandom().choices(string.ascii_letters + string.digits, k=6))
        tokenizer_save_dir = str(Path.cwd() / f"tokenizer-save-dir-{ending}")
    hf_state = state_dict["state"]["integrations"]["huggingface"]
    with _plain_errors(tokenizer_save_dir):
        return load_tokenizer_from_saved_state(hf_state, trust_remote_code, tokenizer_save_dir)


def load_tokenizer(tokenizer_save_dir: str, trust_remote_code: bool) -> Any:
    """Returns the tokenizer whose files are in a folder.

    Args:
        tokenizer_save_dir: The folder.
        trust_remote_code: Whether code in it may run.

    Raises:
        ValueError: The tokenizer needs code, which may not run.
    """
    from transformers import AutoTokenizer

    with _plain_errors(tokenizer_save_dir):
        return AutoTokenizer.from_pretrained(
            tokenizer_save_dir, trust_remote_code=trust_remote_code
        )


@contextlib.contextmanager
def _plain_errors(folder: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"The tokenizer in {folder} brings code of its own. If you trust it, pass "
            "--trust_remote_code."
        ) from error
