"""The tiktoken wrapper, on a small encoding of its own."""

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from llmfoundry.tokenizers.tiktoken import TiktokenTokenizerWrapper, bytes_to_unicode

MERGES = [b"th", b"the", b" c", b" ca", b" cat", b"<|", b"im"]
SPECIAL = {"<|endoftext|>": 270, "<|im_start|>": 266, "<|im_end|>": 267}
TEXTS = [
    "the cat sat",
    "na\u00efve \u65e5\u672c\u8a9e",
    "a  b\n\nc",
    "",
    " <|im_start|>x<|im_end|>",
]


@pytest.fixture
def encoding(monkeypatch: pytest.MonkeyPatch) -> Any:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {merge: 256 + number for number, merge in enumerate(MERGES)}
    made = tiktoken.Encoding(
        "small", pat_str=r"\S+|\s+\S*", mergeable_ranks=ranks, special_tokens=SPECIAL
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: made)
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda name: made)
    return made


def wrapper(**settings: Any) -> TiktokenTokenizerWrapper:
    return TiktokenTokenizerWrapper(encoding_name="small", **settings)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text_are_tiktokens(encoding: Any, text: str) -> None:
    tokenizer = wrapper()
    ids = tokenizer(text)["input_ids"]
    assert ids == encoding.encode(text, allowed_special="all")
    assert tokenizer.decode(ids) == text
    assert list(tokenizer(text)) == ["input_ids", "attention_mask"]


def test_vocabulary_fills_gaps(encoding: Any) -> None:
    tokenizer = wrapper()
    vocabulary = tokenizer.get_vocab()
    assert tokenizer.vocab_size == encoding.n_vocab == 271 == len(tokenizer)
    assert sorted(vocabulary.values()) == list(range(271))
    gaps = {name: index for name, index in vocabulary.items() if name.startswith("<extra_id_")}
    assert gaps == {f"<extra_id_{k}>": i for k, i in enumerate([263, 264, 265, 268, 269])}
    assert tokenizer.decode([264, 104]) == "h"
    assert tokenizer.convert_tokens_to_ids("nowhere") == SPECIAL["<|endoftext|>"]
    assert not tokenizer.is_fast


def test_start_and_end_tokens(encoding: Any) -> None:
    end = SPECIAL["<|endoftext|>"]
    both = wrapper(add_bos_token=True, add_eos_token=True)
    assert both("the")["input_ids"] == [end, 257, end]
    assert both("the", "the")["input_ids"] == [end, 257, end, end, 257, end]
    assert wrapper(add_bos_token=True)("the")["input_ids"] == [end, 257]
    assert wrapper()("the")["input_ids"] == [257]
    assert both("the", return_special_tokens_mask=True)["special_tokens_mask"] == [1, 0, 1]


def test_added_tokens(encoding: Any) -> None:
    tokenizer = wrapper(pad_token="<pad>")
    assert tokenizer.pad_token_id == 271
    tokenizer.add_tokens(["\u65e5new"])
    ids = tokenizer("the \u65e5new cat")["input_ids"]
    assert 272 in ids and tokenizer.decode(ids) == "the \u65e5new cat"


def test_chats(encoding: Any) -> None:
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    plain = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>"
    render = wrapper().apply_chat_template
    assert render(chat, tokenize=False) == plain
    system = [{"role": "system", "content": " be kind "}, *chat]
    assert render(system, tokenize=False) == f"<|im_start|>system\nbe kind<|im_end|>\n{plain}"
    asked = render(chat[:1], tokenize=False, add_generation_prompt=True)
    assert asked.endswith("hi<|im_end|>\n<|im_start|>assistant\n")
    prompted = wrapper(use_default_system_prompt=True).apply_chat_template
    assert prompted(chat, tokenize=False).startswith("<|im_start|>system\nYou are a helpful")
    assert prompted(system, tokenize=False) == render(system, tokenize=False)
    with pytest.raises(Exception, match="at least one message"):
        render([], tokenize=False)
    own = wrapper(chat_template="{{ messages[0]['content'] }}").apply_chat_template
    assert own(chat, tokenize=False) == "hi"


def test_saved_and_loaded(encoding: Any, tmp_path: Path) -> None:
    tokenizer = wrapper(add_bos_token=True, use_default_system_prompt=True, model_max_length=9)
    tokenizer.save_pretrained(tmp_path)
    again = TiktokenTokenizerWrapper.from_pretrained(tmp_path)
    assert again("the cat")["input_ids"] == tokenizer("the cat")["input_ids"]
    assert again.model_max_length == 9
    assert (tmp_path / "tiktoken.py").exists()


def test_bytes_have_characters_of_their_own() -> None:
    table = bytes_to_unicode()
    assert len(set(table.values())) == 256
    assert table[ord("a")] == "a" and table[ord(" ")] == "\u0120" and table[10] == "\u010a"


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="either model_name or encoding_name"):
        TiktokenTokenizerWrapper()
    with pytest.raises(ValueError, match="either model_name or encoding_name"):
        TiktokenTokenizerWrapper(model_name="a", encoding_name="b")
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(ImportError, match="pip install"):
        TiktokenTokenizerWrapper(model_name="gpt-4")


def test_pickles(encoding: Any) -> None:
    again = pickle.loads(pickle.dumps(wrapper()))
    assert again("the cat")["input_ids"] == wrapper()("the cat")["input_ids"]
