"""Turns of tokens into padded batches; labels come from what was said by whom, never from ids."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from llmfoundry.data.concatenation import own_specials
from llmfoundry.data.finetuning.row_fates import nothing_to_learn
from llmfoundry.data.finetuning.stitching import (
    TargetPolicy,
    stitch_turns_decoder_only,
    stitch_turns_encoder_decoder,
    validate_target_settings,
)
from llmfoundry.utils.consts import CROSS_ENTROPY_IGNORE_INDEX

__all__ = [
    "Seq2SeqFinetuningCollator",
    "stitch_turns_decoder_only",
    "stitch_turns_encoder_decoder",
    "validate_target_settings",
]

log = logging.getLogger(__name__)

OWN_KEYS = (
    *("input_ids", "labels", "attention_mask"),
    *("decoder_input_ids", "decoder_attention_mask"),
)
DECODER_KEYS = ("labels", *OWN_KEYS[3:])


class Seq2SeqFinetuningCollator:
    """Makes batches of tokenised rows.

    The last answer of a row ends with the end token, which is learnt. A row that is longer than
    ``max_seq_len`` is cut behind it, and an answer that is cut has no end token, in either format:
    it is not finished. ``rows_cut`` counts such rows.

    Args:
        tokenizer: Names the tokens that end and pad, and the side that is padded.
        max_seq_len: Tokens of a row at most; an encoder-decoder's encoder and decoder have as many
            each.
        decoder_only_format: False makes batches for encoder-decoders.
        target_responses: ``last`` or ``all``: the answers that are learnt.
        target_prompts: ``none``, ``all`` or ``length>=N``: the prompts that are learnt.
        allow_pad_trimming: Cuts padding that all rows share, to a multiple of 8 tokens, from every
            batch but the first: that one shows how much memory the longest takes.
        batch_metadata: Numbers to add to every batch, one a row.
        pad_to_longest: Pads to the longest row of a batch, not to ``max_seq_len``.

    Raises:
        ValueError: There is no padding token, no such target policy, or ``batch_metadata`` has a
            name that the batch has itself.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_seq_len: int,
        decoder_only_format: bool,
        target_responses: str = "last",
        target_prompts: str = "none",
        allow_pad_trimming: bool = False,
        batch_metadata: Mapping[str, Any] | None = None,
        pad_to_longest: bool = False,
    ) -> None:
        self.policy = TargetPolicy(
            max_seq_len, target_prompts, target_responses, decoder_only_format
        )
        self.tokenizer = tokenizer
        self.max_seq_len = max_seq_len
        self.decoder_only_format = decoder_only_format
        self.target_responses = self.policy.target_responses
        self.target_prompts = self.policy.target_prompts
        self.allow_pad_trimming = allow_pad_trimming
        self.batch_metadata = dict(batch_metadata or {})
        self.pad_to_longest = pad_to_longest
        self.rows_seen = 0
        self.rows_cut = 0
        if taken := sorted(set(self.batch_metadata) & set(OWN_KEYS)):
            raise ValueError(
                f"batch_metadata keys {taken} are names of what a batch has itself. Rename them."
            )
        if tokenizer.pad_token_id is None:
            raise ValueError(
                f"{type(self).__name__} requires that the tokenizer has the pad token set, but it "
                "is None. Set tokenizer.pad_token, for example to tokenizer.eos_token."
            )
        if max_seq_len % 8:
            log.warning(f"{max_seq_len=} is not a multiple of 8. This can slow training down.")
        # What an encoder's input ends with, such as T5's end token.
        self._context_end = [] if decoder_only_format else list(own_specials(tokenizer)[1])
        self._first = True

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Makes a batch of rows, each with its ``turns``.

        Raises:
            KeyError: A row has no turns, or a turn no ``input_ids`` or ``labels``.
            ValueError: A row has nothing to learn.
        """
        for turn in _turns(examples[0]):
            if missing := sorted({"input_ids", "labels"} - set(turn)):
                raise KeyError(f"Available keys are {sorted(turn)}, but turns need {missing} too.")
        rows = [_turns(example) for example in examples]
        batch = self._decoder_only(rows) if self.decoder_only_format else self._seq2seq(rows)
        if self.allow_pad_trimming and not self._first:
            batch = self._trimmed(batch)
        self._first = False
        for name, value in self.batch_metadata.items():
            batch[name] = torch.tensor([value] * len(rows))
        return batch

    def _decoder_only(self, rows: list[Any]) -> dict[str, torch.Tensor]:
        sequences = [
            stitch_turns_decoder_only(
                turns, self.target_prompts, self.target_responses, self.tokenizer.eos_token_id
            )
            for turns in rows
        ]
        for input_ids, labels in sequences:
            kept = labels[: self.max_seq_len]
            self._count(len(input_ids), kept.count(CROSS_ENTROPY_IGNORE_INDEX) < len(kept))
        ids = [input_ids for input_ids, _ in sequences]
        side = self.tokenizer.padding_side
        width = self._width(ids)
        attention_mask = _padded([[1] * len(each) for each in ids], 0, width, side)
        return {
            "input_ids": _padded(ids, self.tokenizer.pad_token_id, width, side),
            "labels": _padded(
                [labels for _, labels in sequences], CROSS_ENTROPY_IGNORE_INDEX, width, side
            ),
            "attention_mask": attention_mask,
            "sequence_id": attention_mask - 1,
        }

    def _seq2seq(self, rows: list[Any]) -> dict[str, torch.Tensor]:
        contexts, answers = [], []
        for turns in rows:
            context, answer = stitch_turns_encoder_decoder(turns, self.tokenizer.eos_token_id)
            end = self._context_end
            if end and context[-len(end) :] != end:
                context = context + end
            self._count(max(len(context), len(answer)), bool(answer))
            if len(context) > self.max_seq_len:
                context = [*context[: self.max_seq_len - 1], self.tokenizer.eos_token_id]
            contexts.append(context)
            answers.append(answer)
        pad, side = self.tokenizer.pad_token_id, self.tokenizer.padding_side
        width = self._width(contexts)
        labels = _padded(answers, CROSS_ENTROPY_IGNORE_INDEX, self._width(answers), "right")
        is_target = labels != CROSS_ENTROPY_IGNORE_INDEX
        shifted = labels.masked_fill(~is_target, pad).roll(1, dims=1)
        shifted[:, 0] = pad
        return {
            "input_ids": _padded(contexts, pad, width, side),
            "labels": labels,
            "attention_mask": _padded([[1] * len(each) for each in contexts], 0, width, side),
            "decoder_input_ids": shifted,
            "decoder_attention_mask": is_target,
        }

    def _width(self, rows: Sequence[Sequence[int]]) -> int:
        longest = max(len(row) for row in rows)
        return min(longest, self.max_seq_len) if self.pad_to_longest else self.max_seq_len

    def _count(self, length: int, has_target: bool) -> None:
        """Counts a row, and says so when it is cut: at the 1st, 10th, 100th, ... such row."""
        if not has_target:
            raise nothing_to_learn(length, self.max_seq_len)
        self.rows_seen += 1
        if length <= self.max_seq_len:
            return
        self.rows_cut += 1
        if set(str(self.rows_cut)[1:]) <= {"0"} and str(self.rows_cut)[0] == "1":
            log.warning(
                f"{self.rows_cut} of {self.rows_seen} rows so far were longer than max_seq_len="
                f"{self.max_seq_len} and cut; an answer that is cut has no end token. This one had "
                f"{length} tokens. Raise max_seq_len, or leave such rows out."
            )

    def _trimmed(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The batch without the padding that all its rows share, to a multiple of 8 tokens."""
        encoder = _width_of_8(batch["attention_mask"])
        decoder = encoder
        if not self.decoder_only_format:
            decoder = _width_of_8(batch["decoder_attention_mask"])
        is_left = self.tokenizer.padding_side == "left"
        trimmed = {}
        for key, value in batch.items():
            if not self.decoder_only_format and key in DECODER_KEYS:
                trimmed[key] = value[:, :decoder]
            else:
                trimmed[key] = value[:, -encoder:] if is_left else value[:, :encoder]
        return trimmed


def _turns(example: Mapping[str, Any]) -> Any:
    if "turns" not in example:
        raise KeyError(f"Available keys are {sorted(example)}, but rows need turns.")
    return example["turns"]


def _width_of_8(mask: torch.Tensor) -> int:
    return -int(mask.sum(dim=1).max()) // 8 * -8


def _padded(rows: Sequence[Sequence[int]], padding: int, width: int, side: str) -> torch.Tensor:
    """Rows of one width: cut at the right, padded at ``side``."""
    table = np.full((len(rows), width), padding, dtype=np.int64)
    for place, row in zip(table, rows, strict=True):
        kept = row[:width]
        if side == "left":
            place[width - len(kept) :] = kept
        else:
            place[: len(kept)] = kept
    return torch.from_numpy(table)
