"""Ids of remembered words are those of the whole text, for every pattern that is trusted."""

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from llmfoundry.command_utils.data_prep import _word_cache
from llmfoundry.command_utils.data_prep._word_cache import PATTERNS, WordCache, cuts_are_safe

ATOMS = [
    *"abcdefghijABCTX", *"abcde ", "the", "Don", "'s", "'S", "'", "'ll", " ", " ", " ", "  ",
    "\n", "\n", "\n\n", "\r\n", "\t", "\v", ".", ",", ", ", ",\n", ".\n", ";", ":", "!?", "/", "_",
    "-", "(", "1", "23", "456 ", "\u00e9", "e\u0301", "\u3000", "\xa0", "\x1c", "\x85", "\u2028",
    "/\n/", "\u200b", "\ufeff", "\u4e2d\u6587", "\u0130", "\U0001f600", "<|endoftext|>", "\x00",
]  # fmt: skip


def some_texts(number: int, seed: int = 0) -> list[str]:
    generator = random.Random(seed)
    return ["".join(generator.choices(ATOMS, k=generator.randrange(40))) for _ in range(number)]


def split(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


PRE_TOKENIZERS = {
    "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "qwen": split(PATTERNS[0]),
    "llama3": split(PATTERNS[1]),
    "gpt4o": split(PATTERNS[2]),
}


def trained(pre_tokenizer: Any, **settings: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**settings))
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(some_texts(3000, seed=1), trainer)
    return tokenizer


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_words_give_the_ids_of_the_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_word_cache, "MEMORY", 300_000)
    tokenizer = trained(PRE_TOKENIZERS[name])
    if name == "qwen":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("   "), AddedToken("a_b")])
    assert cuts_are_safe(tokenizer)
    words, texts = WordCache(tokenizer), some_texts(6000)
    # With hardly a space, several thousand characters long: these are cut at line ends alone.
    texts += ["".join(texts[at : at + 500]).replace(" ", "") for at in range(0, 6000, 500)]
    for text, encoding in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert list(words.ids(text)) == encoding.ids, repr(text)
    assert 0 < len(words) <= 1200
    assert max(map(len, words.values())) <= 4 * _word_cache.MOST_IDS  # They are int32.


def test_pieces_join_to_the_text() -> None:
    for text in some_texts(3000, seed=2):
        assert "".join(_word_cache.PIECE.findall(text)) == text
    lines = ["\u4e2d\u6587" * 30, "1. a", "/x", "(b)"]
    pieces = _word_cache.PIECE.findall("\n".join(lines))
    assert pieces == [lines[0] + "\n", "1.", " a", "\n/x\n", "(b)"]
    text = "\n".join(lines[:1] * 1000)
    parts = _word_cache.LINES.findall(text)
    assert "".join(parts) == text and max(map(len, parts)) < 2100


def test_what_is_remembered_takes_a_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_word_cache, "MEMORY", 3_000_000)
    words, generator = WordCache(trained(PRE_TOKENIZERS["gpt2"])), random.Random(0)
    tracemalloc.start()
    most = before = 0
    while before <= len(words):
        before, most = len(words), tracemalloc.get_traced_memory()[0]
        words[" " + "".join(map(chr, generator.choices(range(0x4E00, 0x4F00), k=4)))]
    tracemalloc.stop()
    assert _word_cache.MEMORY / 3 < most < _word_cache.MEMORY


def test_other_tokenizers_are_left_to_their_library() -> None:
    byte_level = PRE_TOKENIZERS["gpt2"]
    assert cuts_are_safe(trained(byte_level))
    assert not cuts_are_safe(trained(byte_level, dropout=0.1))
    for other in (
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        pre_tokenizers.Metaspace(),
        split(r"\w+ \w+"),
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
                for use_regex in (False, True)
            ]
        ),
    ):
        assert not cuts_are_safe(trained(other))
    for token in (AddedToken("a b"), AddedToken("Mr."), AddedToken("x", lstrip=True)):
        tokenizer = trained(byte_level)
        tokenizer.add_tokens([token])
        assert not cuts_are_safe(tokenizer)
    tokenizer = trained(byte_level)
    tokenizer.normalizer = normalizers.Lowercase()
    assert not cuts_are_safe(tokenizer)
    assert not cuts_are_safe(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))


@pytest.mark.slow
def test_a_real_tokenizer_and_text(smollm2: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    assert cuts_are_safe(tokenizer)
    path = Path(__file__).parents[4] / "data" / "methods" / "text"
    texts = [each.read_text("utf-8") for each in sorted(path.rglob("*.txt"))]
    texts += [json.dumps(json.loads((smollm2 / "tokenizer.json").read_text()), indent=1)]
    words = WordCache(tokenizer)
    for text in texts:
        assert list(words.ids(text)) == tokenizer.encode(text).ids
