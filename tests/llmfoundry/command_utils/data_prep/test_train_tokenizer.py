import json
from pathlib import Path

import pytest

from llmfoundry.command_utils.data_prep.train_tokenizer import train_tokenizer

TEXT = "To be, or not to be, that is the question.\nWhether 'tis nobler in the mind\n\n" * 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "text"
    source.mkdir()
    (source / "hamlet.txt").write_text(TEXT, encoding="utf-8")
    return source


def test_plain_transformers_loads_it(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    out = train_tokenizer(str(folder), str(tmp_path / "tok"), 280, model_max_length=64)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert len(tokenizer) == 280
    assert tokenizer.eos_token == tokenizer.bos_token == "<|endoftext|>"
    assert tokenizer.pad_token is None  # else the collator would take EOS out of the loss
    assert tokenizer.model_max_length == 64


def test_any_text_survives(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        train_tokenizer(str(folder), str(tmp_path / "tok"), 300)
    )
    text = "  Caf\u00e9 , \u65e5\u672c\n\n\t\U0001f600 1623  ' s"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_same_text_gives_the_same_tokenizer(folder: Path, tmp_path: Path) -> None:
    first = train_tokenizer(str(folder), str(tmp_path / "a"), 300)
    second = train_tokenizer(str(folder), str(tmp_path / "b"), 300)
    assert (first / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()


def test_transformers_4_knows_the_class(folder: Path, tmp_path: Path) -> None:
    out = train_tokenizer(str(folder), str(tmp_path / "tok"), 300)
    config = json.loads((out / "tokenizer_config.json").read_text("utf-8"))
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_too_small_a_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must exceed 256"):
        train_tokenizer(str(folder), str(tmp_path / "tok"), 256)


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no \.txt file"):
        train_tokenizer(str(tmp_path), str(tmp_path / "tok"))


def test_text_that_is_not_utf8_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "old.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"old\.txt is not UTF-8"):
        train_tokenizer(str(folder), str(tmp_path / "tok"), 300)
