"""Labels by structure: what is learnt, what is cut and counted, and what pads."""

import logging
from typing import Any

import pytest
import torch

from llmfoundry.data.finetuning.collator import (
    Seq2SeqFinetuningCollator,
    stitch_turns_decoder_only,
    stitch_turns_encoder_decoder,
    validate_target_settings,
)
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

EOS = 1
TURNS = [
    {"input_ids": [5, 6, 7], "labels": [8, 9]},
    {"input_ids": [10], "labels": [11, 12]},
]


def padded_by_eos(**kwargs: bool) -> Any:
    tokenizer = train_tokenizer(**kwargs)
    tokenizer.pad_token = tokenizer.eos_token
    assert tokenizer.eos_token_id == EOS
    return tokenizer


def example(prompt: int, answer: int) -> dict[str, Any]:
    return {"turns": [{"input_ids": [7] * prompt, "labels": [8] * answer}]}


@pytest.mark.parametrize(
    ("prompts", "responses", "labels"),
    [
        ("none", "last", [-100] * 6 + [11, 12, EOS]),
        ("none", "all", [-100] * 3 + [8, 9, -100, 11, 12, EOS]),
        ("all", "last", [5, 6, 7, -100, -100, 10, 11, 12, EOS]),
        ("length>=2", "all", [5, 6, 7, 8, 9, -100, 11, 12, EOS]),
        ("length>=3", "last", [5, 6, 7, -100, -100, -100, 11, 12, EOS]),
        ("length>=4", "last", [-100] * 6 + [11, 12, EOS]),
    ],
)
def test_targets_by_policy(prompts: str, responses: str, labels: list[int]) -> None:
    ids, found = stitch_turns_decoder_only(TURNS, prompts, responses, EOS, validate=True)
    assert ids == [5, 6, 7, 8, 9, 10, 11, 12, EOS]
    assert found == labels


def test_an_end_token_that_is_there_is_not_doubled() -> None:
    turns = [{"input_ids": [5], "labels": [6, EOS]}]
    assert stitch_turns_decoder_only(turns, "none", "last", EOS)[0] == [5, 6, EOS]
    assert stitch_turns_encoder_decoder(turns, EOS) == ([5], [6, EOS])
    assert stitch_turns_encoder_decoder(TURNS, EOS) == ([5, 6, 7, 8, 9, 10], [11, 12, EOS])


@pytest.mark.parametrize("policy", [("some", "last"), ("length>=0", "last"), ("none", "first")])
def test_unknown_policies_are_refused(policy: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="must"):
        validate_target_settings(*policy, decoder_only_format=True)
    with pytest.raises(ValueError):
        Seq2SeqFinetuningCollator(padded_by_eos(), 8, True, policy[1], policy[0])


def test_b63_b70_the_end_token_is_learnt_although_it_pads() -> None:
    collate = Seq2SeqFinetuningCollator(padded_by_eos(), 8, True)
    batch = collate([example(1, 3), example(1, 1)])
    assert batch["labels"].tolist() == [
        [-100, 8, 8, 8, EOS, -100, -100, -100],
        [-100, 8, EOS] + [-100] * 5,
    ]
    assert batch["input_ids"][0].tolist() == [7, 8, 8, 8, EOS, EOS, EOS, EOS]
    assert batch["sequence_id"][0].tolist() == [0] * 5 + [-1] * 3
    assert (batch["labels"][0] != -100).sum() == 4


def test_c12_b61_one_rule_for_cuts_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    rows = [example(2, 5), example(2, 6), example(2, 30), example(1, 1)]
    decoder = Seq2SeqFinetuningCollator(padded_by_eos(), 8, True)
    encoder = Seq2SeqFinetuningCollator(padded_by_eos(), 8, False)
    caplog.set_level(logging.WARNING)
    batch, pair = decoder(rows), encoder([*rows, example(2, 8)])
    assert batch["labels"][:, -1].tolist() == [EOS, 8, 8, -100]
    assert decoder.rows_cut == 2
    # An answer of 30, and one of 8 and the end token: both are not finished.
    assert pair["labels"][2].tolist() == [8] * 8 == pair["labels"][4].tolist()
    assert pair["labels"][0].tolist() == [8] * 5 + [EOS, -100, -100]
    assert encoder.rows_cut == 2 and encoder.rows_seen == 5
    assert sum("longer than max_seq_len" in each.message for each in caplog.records) == 2
    for tensors in (batch, pair):
        assert {tensor.shape[1] for tensor in tensors.values()} == {8}
    for _ in range(10):
        decoder([example(2, 30)])
    assert "10 of 12 rows" in caplog.records[-1].message


def test_a_row_with_nothing_to_learn_is_refused() -> None:
    collate = Seq2SeqFinetuningCollator(padded_by_eos(), 8, True)
    with pytest.raises(ValueError, match="removed all loss-generating tokens.*was 12"):
        collate([example(9, 2)])
    with pytest.raises(ValueError, match="its answer is empty"):
        collate([example(3, 0)])
    with pytest.raises(ValueError, match="its answer is empty"):
        Seq2SeqFinetuningCollator(padded_by_eos(), 8, False)([example(3, 0)])


def test_an_encoder_is_given_its_end_token_and_a_decoder_its_targets_moved() -> None:
    collate = Seq2SeqFinetuningCollator(padded_by_eos(eos=True), 8, False, pad_to_longest=True)
    batch = collate([example(2, 2), example(9, 1), {"turns": TURNS}])
    assert batch["input_ids"].tolist() == [
        [7, 7, EOS, EOS, EOS, EOS, EOS, EOS],
        [7] * 7 + [EOS],
        [5, 6, 7, 8, 9, 10, EOS, EOS],
    ]
    assert batch["attention_mask"].sum(dim=1).tolist() == [3, 8, 7]
    assert batch["labels"].tolist() == [[8, 8, EOS], [8, EOS, -100], [11, 12, EOS]]
    assert batch["decoder_input_ids"].tolist() == [[EOS, 8, 8], [EOS, 8, EOS], [EOS, 11, 12]]
    assert batch["decoder_attention_mask"].tolist()[1] == [True, True, False]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_that_all_share_is_trimmed_from_the_second_batch_on(side: str) -> None:
    tokenizer = padded_by_eos()
    tokenizer.padding_side = side
    whole = Seq2SeqFinetuningCollator(tokenizer, 32, True)
    trimming = Seq2SeqFinetuningCollator(tokenizer, 32, True, allow_pad_trimming=True)
    rows = [example(2, 7), example(3, 1)]
    first, second, expected = trimming(rows), trimming(rows), whole(rows)
    for key, value in expected.items():
        assert torch.equal(first[key], value)
        assert torch.equal(second[key], value[:, -16:] if side == "left" else value[:, :16])
    pair = Seq2SeqFinetuningCollator(tokenizer, 32, False, allow_pad_trimming=True)
    pair(rows)
    assert pair([example(17, 3)])["input_ids"].shape == (1, 24)
    assert pair([example(17, 3)])["labels"].tolist() == [[8, 8, 8, EOS] + [-100] * 4]


def test_batch_metadata_goes_along_and_takes_no_name() -> None:
    collate = Seq2SeqFinetuningCollator(padded_by_eos(), 8, True, batch_metadata={"task": 3})
    assert collate([example(1, 1)] * 2)["task"].tolist() == [3, 3]
    with pytest.raises(ValueError, match="labels"):
        Seq2SeqFinetuningCollator(padded_by_eos(), 8, True, batch_metadata={"labels": 1})


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="pad token"):
        Seq2SeqFinetuningCollator(train_tokenizer(), 8, True)
    collate = Seq2SeqFinetuningCollator(padded_by_eos(), 8, True)
    with pytest.raises(KeyError, match="turns"):
        collate([{"input_ids": [1]}])
    with pytest.raises(KeyError, match="labels"):
        collate([{"turns": [{"input_ids": [1]}]}])
