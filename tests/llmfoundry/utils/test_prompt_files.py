"""Prompts in place and in files."""

from pathlib import Path

import pytest

from llmfoundry.utils.prompt_files import load_prompts, load_prompts_from_file


def test_prompts(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one|two||three")
    entry = f"file::{tmp_path / 'p.txt'}"
    assert load_prompts(["zero", entry], "|") == ["zero", "one", "two", "three"]
    assert load_prompts([entry]) == ["one|two||three"]
    with pytest.raises(FileNotFoundError):
        load_prompts_from_file(f"file::{tmp_path / 'q.txt'}")
    with pytest.raises(ValueError, match="file::PATH"):
        load_prompts_from_file(str(tmp_path / "p.txt"))
