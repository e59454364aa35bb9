"""The tokenizer of a checkpoint, wherever its files are put."""

from pathlib import Path
from typing import Any

import pytest

from composer.models.hf_metadata import describe_tokenizer
from llmfoundry.utils import get_hf_tokenizer_from_composer_state_dict, load_tokenizer
from tests.llmfoundry.tiny_tokenizer import train_tokenizer


def _state(tokenizer: dict[str, Any]) -> dict[str, Any]:
    return {"state": {"integrations": {"huggingface": {"tokenizer": tokenizer}}}}


def test_it_is_the_tokenizer_that_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = train_tokenizer(eos=True)
    state = _state(describe_tokenizer(tokenizer))
    found = get_hf_tokenizer_from_composer_state_dict(state, trust_remote_code=False)
    text = "the cat sat on the mat"
    assert found(text)["input_ids"] == tokenizer(text)["input_ids"]
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("tokenizer-save-dir-")
    again = load_tokenizer(str(folder), trust_remote_code=False)
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    other = tmp_path / "other"
    get_hf_tokenizer_from_composer_state_dict(state, False, str(other))
    assert (other / "tokenizer.json").exists()


def test_without_one() -> None:
    assert get_hf_tokenizer_from_composer_state_dict(_state({}), False) is None
    with pytest.raises(RuntimeError, match="no entry 'state'"):
        get_hf_tokenizer_from_composer_state_dict({}, False)
    with pytest.raises(RuntimeError, match="integrations/huggingface"):
        get_hf_tokenizer_from_composer_state_dict({"state": {"integrations": {}}}, False)


def test_code_needs_trust(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"auto_map": {"AutoTokenizer": ["own.Own", null]}, "tokenizer_class": "Own"}'
    )
    with pytest.raises(ValueError, match="pass --trust_remote_code"):
        load_tokenizer(str(tmp_path), trust_remote_code=False)
