"""What becomes of each fine-tuning row: kept, cut or dropped, why, and how many of each."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmfoundry.data.finetuning.stitching import (
    TargetPolicy,
    Turns,
    stitch_turns_decoder_only,
    stitch_turns_encoder_decoder,
)
from llmfoundry.utils.consts import CROSS_ENTROPY_IGNORE_INDEX

__all__ = [
    "CUT",
    "KEPT",
    "RowReport",
    "count_tokens",
    "is_valid_ift_example",
    "nothing_to_learn",
    "row_fate",
]

KEPT = "kept"
CUT = "cut"
EMPTY_PROMPT = "empty prompt"
EMPTY_ANSWER = "empty answer"
NO_TARGET = "nothing to learn within max_seq_len"


def row_fate(
    example: Mapping[str, Any], policy: TargetPolicy, eos_token_id: int | None = None
) -> tuple[str, int, int]:
    """What becomes of a tokenised row, its tokens, and how many of them are learnt.

    Args:
        example: The row's ``turns``.
        policy: Which tokens are learnt.
        eos_token_id: Ends the last answer.
    """
    turns = example["turns"]
    if any(len(turn["input_ids"]) == 0 for turn in turns):
        return EMPTY_PROMPT, 0, 0
    if any(len(turn["labels"]) == 0 for turn in turns):
        return EMPTY_ANSWER, 0, 0
    length, tokens, learnt = count_tokens(turns, policy, eos_token_id)
    if not learnt:
        return NO_TARGET, 0, 0
    return CUT if length > policy.max_seq_len else KEPT, tokens, learnt


def count_tokens(
    turns: Turns, policy: TargetPolicy, eos_token_id: int | None = None
) -> tuple[int, int, int]:
    """The length of a row, its tokens within ``max_seq_len``, and how many of these are learnt.

    The length is that of the longer side of an encoder-decoder's row.

    Args:
        turns: The row's turns.
        policy: Which tokens are learnt.
        eos_token_id: Ends the last answer.
    """
    limit = policy.max_seq_len
    if policy.decoder_only_format:
        input_ids, labels = stitch_turns_decoder_only(
            turns, policy.target_prompts, policy.target_responses, eos_token_id
        )
        # The first token of a sequence follows from nothing, so it is no target.
        learnt = sum(each != CROSS_ENTROPY_IGNORE_INDEX for each in labels[1:limit])
        length, tokens = len(input_ids), len(input_ids[:limit])
    else:
        context, answer = stitch_turns_encoder_decoder(turns, eos_token_id)
        learnt = len(answer[:limit])
        length, tokens = max(len(context), len(answer)), len(context[:limit]) + learnt
    return length, tokens, learnt


def nothing_to_learn(length: int, max_seq_len: int, place: str = "") -> ValueError:
    """The error about a row of ``length`` tokens without a target; ``place`` says where it is."""
    fault = (
        f"Truncating to max_seq_len={max_seq_len} has removed all loss-generating tokens. "
        f"Pre-truncation sequence length was {length}."
    )
    if length <= max_seq_len:
        fault = f"A row of {length} tokens has no loss-generating token: its answer is empty."
    if place:
        fault += f" It is {place}."
    return ValueError(
        f"{fault} This sample should have been filtered out before reaching the collator. Leave "
        "it out, or set packing: best_fit, or prepare the data with convert_finetuning_dataset "
        "--tokenizer; these leave such rows out and count them. If the data is tokenised already, "
        "target_prompts, target_responses or max_seq_len may be others than it was prepared with."
    )


def is_valid_ift_example(
    max_seq_len: int,
    target_prompts: str,
    target_responses: str,
    decoder_only_format: bool,
    example: Mapping[str, Any],
) -> bool:
    """Says whether a tokenised row has something to learn within ``max_seq_len``.

    Args:
        max_seq_len: Tokens of a row at most; what is behind them is cut off.
        target_prompts: ``none``, ``all`` or ``length>=N``.
        target_responses: ``last`` or ``all``.
        decoder_only_format: False for encoder-decoders.
        example: The row's ``turns``.
    """
    policy = TargetPolicy(max_seq_len, target_prompts, target_responses, decoder_only_format)
    return row_fate(example, policy)[0] in (KEPT, CUT)


@dataclass
class RowReport:
    """Counts of what became of a data set's rows."""

    fates: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    """Tokens of the rows that stay, end tokens included; 0 if they are not tokenised."""
    learnt: int = 0
    empty_answers: int = 0
    """Rows of text that stay although there is nothing to learn from one of their answers."""

    @property
    def kept(self) -> int:
        """Rows that stay, whole or cut."""
        return self.fates[KEPT] + self.fates[CUT]

    @property
    def dropped(self) -> dict[str, int]:
        """Rows that are left out, by reason."""
        return {fate: n for fate, n in sorted(self.fates.items()) if fate not in (KEPT, CUT)}

    def lines(self) -> list[str]:
        """The report as lines of text."""
        rows = [f"rows: {self.fates.total():,}, of which {self.kept:,} stay"]
        if self.tokens:
            rows.append(f"tokens: {self.tokens:,}, of which {self.learnt:,} are learnt")
        if self.fates[CUT]:
            rows.append(f"cut at max_seq_len: {self.fates[CUT]:,} rows")
        if self.empty_answers:
            rows.append(
                f"empty answers: {self.empty_answers:,} rows; training stops at one with nothing "
                "else to learn"
            )
        return rows + [f"dropped: {count:,} rows ({why})" for why, count in self.dropped.items()]

    def as_dict(self) -> dict[str, Any]:
        """The report as plain numbers."""
        return {
            "rows": self.fates.total(),
            "rows_kept": self.kept,
            "rows_cut": self.fates[CUT],
            "rows_dropped": self.dropped,
            "empty_answers": self.empty_answers,
            "tokens": self.tokens,
            "tokens_learnt": self.learnt,
        }
