"""What becomes of a row, by hand-made turns."""

from typing import Any

import pytest

from llmfoundry.data.finetuning.row_fates import RowReport, is_valid_ift_example, row_fate
from llmfoundry.data.finetuning.stitching import TargetPolicy

EOS = 1


def row(*lengths: int) -> dict[str, Any]:
    """Turns of so many tokens of prompt, answer, prompt, answer, ..."""
    pairs = zip(lengths[::2], lengths[1::2], strict=True)
    return {"turns": [{"input_ids": [7] * p, "labels": [8] * a} for p, a in pairs]}


@pytest.mark.parametrize(
    ("lengths", "policy", "fate"),
    [
        ((3, 4), ("none", "last"), ("kept", 8, 5)),
        ((3, 4), ("all", "last"), ("kept", 8, 7)),  # the very first token is no target
        ((3, 5), ("none", "last"), ("cut", 8, 5)),
        ((8, 5), ("none", "last"), ("nothing to learn within max_seq_len", 0, 0)),
        ((7, 5), ("none", "last"), ("cut", 8, 1)),
        ((2, 2, 5, 1), ("none", "last"), ("nothing to learn within max_seq_len", 0, 0)),
        ((2, 2, 5, 1), ("none", "all"), ("cut", 8, 2)),
        ((0, 4), ("none", "last"), ("empty prompt", 0, 0)),
        ((3, 0), ("all", "last"), ("empty answer", 0, 0)),
        ((3, 0, 1, 1), ("none", "last"), ("empty answer", 0, 0)),
    ],
)
def test_fates(lengths: tuple[int, ...], policy: tuple[str, str], fate: tuple[Any, ...]) -> None:
    assert row_fate(row(*lengths), TargetPolicy(8, *policy), EOS) == fate


def test_the_first_token_of_a_row_is_nothing_to_learn() -> None:
    assert not is_valid_ift_example(1, "all", "all", True, row(3, 4))
    assert is_valid_ift_example(2, "all", "all", True, row(3, 4))


def test_encoder_decoders_have_room_for_each() -> None:
    policy = TargetPolicy(8, decoder_only_format=False)
    assert row_fate(row(8, 7), policy, EOS) == ("kept", 16, 8)
    assert row_fate(row(9, 3), policy, EOS) == ("cut", 12, 4)
    assert row_fate(row(3, 8), policy, EOS) == ("cut", 11, 8)
    assert is_valid_ift_example(8, "none", "last", False, row(30, 1))


def test_a_report_tells_every_row() -> None:
    report = RowReport(tokens=20, learnt=9)
    report.fates.update(["kept", "kept", "cut", "empty answer"])
    assert report.lines() == [
        "rows: 4, of which 3 stay",
        "tokens: 20, of which 9 are learnt",
        "cut at max_seq_len: 1 rows",
        "dropped: 1 rows (empty answer)",
    ]
    assert report.as_dict()["rows_dropped"] == {"empty answer": 1}
