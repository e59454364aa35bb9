"""Prompts given in place or in a file."""

from pathlib import Path

__all__ = ["PROMPTFILE_PREFIX", "load_prompts", "load_prompts_from_file"]

PROMPTFILE_PREFIX: str = "file::"


def load_prompts(prompts: list[str], prompt_delimiter: str | None = None) -> list[str]:
    """Replaces each ``file::PATH`` by the prompts in that file and keeps the rest.

    Args:
        prompts: Prompts, or ``file::PATH`` entries.
        prompt_delimiter: What separates prompts in a file; None means that a file is one prompt.
    """
    loaded: list[str] = []
    for prompt in prompts:
        if prompt.startswith(PROMPTFILE_PREFIX):
            loaded.extend(load_prompts_from_file(prompt, prompt_delimiter))
        else:
            loaded.append(prompt)
    return loaded


def load_prompts_from_file(prompt_path: str, prompt_delimiter: str | None = None) -> list[str]:
    """Reads the prompts of one ``file::PATH`` entry; empty pieces are dropped.

    Raises:
        ValueError: The entry has no ``file::`` prefix.
        FileNotFoundError: The file is not there.
    """
    if not prompt_path.startswith(PROMPTFILE_PREFIX):
        raise ValueError(f"A prompt file is written {PROMPTFILE_PREFIX}PATH; got {prompt_path!r}.")
    path = Path(prompt_path.removeprefix(PROMPTFILE_PREFIX)).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"Prompt file {path} does not exist.")
    text = path.read_text(encoding="utf-8")
    if prompt_delimiter is None:
        return [text]
    return [piece for piece in text.split(prompt_delimiter) if piece]
