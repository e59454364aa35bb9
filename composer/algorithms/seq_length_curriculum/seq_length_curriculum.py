"""Sequence-length curriculum: each batch cut into many short sequences first, later into few."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time import Time
from composer.optim.schedule_time import fraction_done
from composer.utils.misc import unwrap_model

IGNORED = -100
_EVENTS = (Event.AFTER_DATALOADER, Event.BEFORE_FORWARD, Event.AFTER_FORWARD)


def cut_sequences(batch: Mapping[str, Any], pieces: int) -> dict[str, Any]:
    """Returns a batch of text whose sequences are cut into so many sequences of their own.

    Args:
        batch: Tensors of (samples, sequence length, ...); what is no tensor stays as it is.
        pieces: Into how many equal pieces each sequence is cut.

    Raises:
        ValueError: If a tensor has another shape, or its sequences do not divide.
    """
    rows, length = batch["input_ids"].shape[:2]
    if length % pieces:
        raise ValueError(
            f"Sequences of {length} tokens cannot be cut into {pieces} equal pieces; use sequences "
            "whose length is a power of two times the shortest."
        )
    cut = dict(batch)
    for key, value in batch.items():
        if not isinstance(value, torch.Tensor) or value.ndim == 0:
            continue
        if value.shape[:2] != (rows, length):
            raise ValueError(
                f"{key!r} has shape {tuple(value.shape)} and cannot be cut as input_ids of shape "
                f"{(rows, length)}: leave it out of the batch."
            )
        cut[key] = value.reshape(rows * pieces, length // pieces, *value.shape[2:])
    mask = cut.get("attention_mask")
    if mask is not None:  # a piece of padding alone: models want a token in each row
        is_empty = ~mask.bool().any(dim=1)
        cut["attention_mask"] = mask = mask.clone()
        mask[:, 0] = torch.where(is_empty, torch.ones_like(mask[:, 0]), mask[:, 0])
    return cut


def _joined(outputs: Any, rows: int, length: int) -> Any:
    """Returns outputs whose logits, if there are any, are those of whole sequences."""
    if isinstance(outputs, torch.Tensor):
        return outputs.reshape(rows, length, *outputs.shape[2:])
    if isinstance(outputs, Mapping) and outputs.get("logits") is not None:
        outputs["logits"] = _joined(outputs["logits"], rows, length)  # type: ignore[index]
    return outputs


class SeqLengthCurriculum(Algorithm):
    """Trains on short sequences first: a batch of text is cut into many, later into fewer.

    The tokens of a batch stay the same, so a step costs what the attention to nearer tokens costs:
    less. Lengths double up to the loader's, in equal parts of the time. This is the variable-length
    curriculum of dataset decomposition (arXiv 2405.13226), on sequences that run through their
    text; documents need not end where a sequence does. Where a piece begins, its first token has
    nothing to be predicted from: it is no target, and losses are means over those that are left.
    Micro-batches are cut one by one, so they hold as many tokens as ever, and only for the model's
    forward: losses and metrics made of logits find them whole. The length follows from the clock
    alone, so a run resumes exactly. Evaluation is not touched.

    Logs ``seq_length_curriculum/seq_length``.

    Args:
        min_seq_length: Sequences are halved as long as the pieces have at least so many tokens.
        duration: The share of training in which sequences are cut.
        num_cycles: How often in that time lengths go from short to long.

    Raises:
        ValueError: If a setting is out of range, or sequences cannot be cut so.
    """

    def __init__(
        self, min_seq_length: int = 256, duration: float = 0.5, num_cycles: int = 1
    ) -> None:
        if min_seq_length < 1 or not 0 < duration <= 1 or num_cycles < 1:
            raise ValueError(
                f"min_seq_length={min_seq_length} and num_cycles={num_cycles} must be at least 1, "
                f"and duration={duration}, a share of training, above 0 and at most 1."
            )
        self.min_seq_length = min_seq_length
        self.duration = duration
        self.num_cycles = num_cycles
        self._whole: Any = None

    def match(self, event: Event, state: State) -> bool:
        """Matches when a batch is loaded, and around each forward, while sequences are cut."""
        return event in _EVENTS and self._done(state) < 1

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Takes out targets that nothing predicts; cuts for the forward, and joins after it."""
        if event is Event.AFTER_FORWARD:
            if self._whole is not None:
                state.batch, self._whole = self._whole, None
                state.outputs = _joined(state.outputs, *state.batch["input_ids"].shape[:2])
            return
        if not isinstance(state.batch, Mapping) or "input_ids" not in state.batch:
            raise ValueError("SeqLengthCurriculum needs batches that are mappings with input_ids.")
        pieces, length = self._pieces(state), state.batch["input_ids"].shape[1]
        if event is Event.BEFORE_FORWARD:
            if pieces > 1:
                self._whole, state.batch = state.batch, cut_sequences(state.batch, pieces)
            return
        logger.log_metrics({"seq_length_curriculum/seq_length": length // pieces})
        model: Any = unwrap_model(state.model)
        if pieces > 1 and getattr(model, "shift_labels", False):
            labels = state.batch["labels"].clone()
            labels[:, length // pieces :: length // pieces] = IGNORED
            state.batch = {**state.batch, "labels": labels}

    def _done(self, state: State) -> float:
        return fraction_done(state, Time.from_duration(self.duration))

    def _pieces(self, state: State) -> int:
        length = state.batch["input_ids"].shape[1]
        doublings = int(math.log2(max(1, length / self.min_seq_length)))
        if doublings == 0 or length % 2**doublings:
            raise ValueError(
                f"SeqLengthCurriculum cannot halve sequences of {length} tokens down to "
                f"min_seq_length={self.min_seq_length}; use sequences of a power of two times some "
                "length that is no shorter, or a smaller min_seq_length."
            )
        in_cycle = self._done(state) * self.num_cycles % 1
        return 2 ** (doublings - int(in_cycle * (doublings + 1)))
