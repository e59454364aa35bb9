"""Sequence length warm-up: begins training with shorter sequences."""

from collections.abc import Mapping
from typing import Any

import torch

from composer.algorithms.utils.autocast import autocast_of
from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.intervals import present_batches
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time import TimeUnit
from composer.models.huggingface import HuggingFaceModel
from composer.utils.iter_helpers import ensure_tuple
from composer.utils.misc import unwrap_model
from composer.utils.reproducibility import seed_context


def set_batch_sequence_length(
    batch: Mapping[str, Any],
    curr_seq_len: int,
    truncate: bool = True,
    preserve_end_of_sequence: bool = False,
) -> dict[str, Any]:
    """Makes the sequences of a batch shorter (Li et al., 2021).

    Args:
        batch: Tensors (batch, time, ...); what is no tensor stays as it is.
        curr_seq_len: Tokens in a sequence; sequences that are no longer stay as they are.
        truncate: Cuts sequences off; otherwise each is cut into several, which keeps all tokens but
            those that do not fill a sequence at the end.
        preserve_end_of_sequence: Where a sequence is cut off, puts its last token in place of the
            last one that stays. Needs ``attention_mask``, which says where padding begins.

    Returns:
        A new batch.

    Raises:
        ValueError: If tensors have other shapes, or a key is missing.
    """
    tensors = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}
    for key, value in tensors.items():
        if value.ndim < 2:
            raise ValueError(
                f"{key!r} of shape {tuple(value.shape)} has no axis of time: sequences are tensors "
                "(batch, time)"
            )
    if not truncate:
        # What a list says of each row, such as its tokens, is not of the new rows.
        whole = {key: value for key, value in batch.items() if not isinstance(value, list)}
        return {**whole, **_cut_into_several(tensors, curr_seq_len)}
    shorter = {key: value[:, :curr_seq_len] for key, value in tensors.items()}
    if preserve_end_of_sequence:
        if "attention_mask" not in tensors:
            raise ValueError(
                "preserve_end_of_sequence=True needs 'attention_mask' in the batch, to see where "
                f"sequences end; it has {sorted(batch)}"
            )
        ends = tensors["attention_mask"].long().sum(1) - 1
        rows = torch.arange(len(ends), device=ends.device)
        for key, value in tensors.items():
            kept = shorter[key].clone()
            kept[rows, ends.clamp(max=kept.shape[1] - 1)] = value[rows, ends]
            shorter[key] = kept
    return {**batch, **shorter}


def _cut_into_several(
    tensors: Mapping[str, torch.Tensor], curr_seq_len: int
) -> dict[str, torch.Tensor]:
    if "input_ids" not in tensors:
        raise ValueError(f"truncate=False needs 'input_ids' in the batch; it has {sorted(tensors)}")
    shape = tensors["input_ids"].shape
    for key, value in tensors.items():
        if value.shape != shape:
            raise ValueError(
                f"{key!r} of shape {tuple(value.shape)} cannot be cut as input_ids of shape "
                f"{tuple(shape)} are; set truncate=True, or leave it out of the batch"
            )
    if curr_seq_len >= shape[1]:
        return dict(tensors)
    num_tokens = shape.numel() // curr_seq_len * curr_seq_len
    return {
        key: value.flatten()[:num_tokens].view(-1, curr_seq_len) for key, value in tensors.items()
    }


class SeqLengthWarmup(Algorithm):
    """Trains a language model on short sequences first (Li et al., 2021).

    The length grows in equal steps. On a GPU, the first batch runs once at full length, so that the
    memory that it takes is whole (not if the micro-batch size is found by trying).

    Args:
        duration: Part of training in which the length grows.
        min_seq_length: Length at the beginning.
        max_seq_length: Length at the end.
        step_size: How much longer sequences become at once.
        truncate: Cuts sequences off; otherwise each is cut into several, and the batch has more.
        preserve_end_of_sequence: Keeps the last token of a sequence that is cut off; needs
            ``attention_mask`` in the batch.

    Raises:
        ValueError: If a setting is out of range.

    It logs:

    +------------------------------------+------------------------------------------+
    | ``seq_length_warmup/curr_seq_len`` | Tokens in a sequence.                    |
    +------------------------------------+------------------------------------------+
    | ``seq_length_warmup/curr_bs``      | Sequences in the batch of this rank.     |
    +------------------------------------+------------------------------------------+
    """

    def __init__(
        self,
        duration: float = 0.3,
        min_seq_length: int = 8,
        max_seq_length: int = 1024,
        step_size: int = 8,
        truncate: bool = True,
        preserve_end_of_sequence: bool = False,
    ) -> None:
        if not 0 <= duration <= 1:
            raise ValueError(f"duration={duration} must be a part of training, from 0 to 1")
        if max_seq_length < min_seq_length:
            raise ValueError(
                f"max_seq_length={max_seq_length} must be at least min_seq_length={min_seq_length}"
            )
        if min_seq_length < 1 or step_size < 1:
            raise ValueError(
                f"min_seq_length={min_seq_length} and step_size={step_size} must be at least 1"
            )
        self.duration = duration
        self.min_seq_length = min_seq_length
        self.max_seq_length = max_seq_length
        self.step_size = step_size
        self.truncate = truncate
        self.preserve_end_of_sequence = preserve_end_of_sequence
        self._has_reserved_memory = False

    def match(self, event: Event, state: State) -> bool:
        """Matches at the start, to check the model, and when a batch has been loaded."""
        return event in (Event.INIT, Event.AFTER_DATALOADER)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Makes the sequences of the batch shorter.

        Raises:
            RuntimeError: If the model is no HuggingFaceModel.
        """
        if event == Event.INIT:
            if not isinstance(state.model, HuggingFaceModel):
                raise RuntimeError(
                    "SeqLengthWarmup needs a HuggingFaceModel, whose batches are mappings of "
                    f"tensors (batch, time), not {type(state.model).__name__}"
                )
            return None
        on_gpu = state.device.name == "gpu"
        if on_gpu and not self._has_reserved_memory and not state.auto_microbatching:
            self._reserve_memory(state)
        length = self._length(state)
        state.batch = set_batch_sequence_length(
            state.batch, length, self.truncate, self.preserve_end_of_sequence
        )
        sizes = [len(each) for each in state.batch.values() if isinstance(each, torch.Tensor)]
        logger.log_metrics(
            {"seq_length_warmup/curr_seq_len": length, "seq_length_warmup/curr_bs": sizes[0]}
        )
        return None

    def _length(self, state: State) -> int:
        updates = (self.max_seq_length - self.min_seq_length) // self.step_size
        batches, done = _run_in_batches(state)
        warmup = int(batches * self.duration)
        if warmup < max(updates, 1):
            raise ValueError(
                f"duration={self.duration} is {warmup} batches of this run, and the length is to "
                f"grow {updates} times in them: make duration or step_size={self.step_size} "
                "larger, or leave SeqLengthWarmup out"
            )
        grown = done // (warmup // max(updates, 1))
        return min(self.min_seq_length + self.step_size * grown, self.max_seq_length)

    def _reserve_memory(self, state: State) -> None:
        """Runs a micro-batch at full length, so that later ones find its memory in one piece."""
        size = state.device_train_microbatch_size
        longest = {
            key: value[:size, torch.arange(self.max_seq_length) % value.shape[1]]
            for key, value in state.batch.items()
            if isinstance(value, torch.Tensor) and value.ndim > 1
        }
        batch = state.device.batch_to_device({**state.batch, **longest})
        model: Any = unwrap_model(state.model)
        with seed_context(state.seed):  # its draws would differ when a resumed run does it again
            with autocast_of(state):
                losses = ensure_tuple(model.loss(state.model(batch), batch))
            torch.stack([loss.mean() for loss in losses]).sum().backward()
        state.model.zero_grad()
        self._has_reserved_memory = True


def _run_in_batches(state: State) -> tuple[int, int]:
    """Returns how many batches the run has, and how many of them are done."""
    duration = state.max_duration
    assert duration is not None, "training has a duration"
    if duration.unit is TimeUnit.BATCH:
        return int(duration), int(state.timestamp.batch)
    if duration.unit is not TimeUnit.EPOCH or state.dataloader_len is None:
        raise NotImplementedError(
            f"SeqLengthWarmup counts batches, and max_duration={duration} does not say how many "
            "there are; give it in batches (ba), or in epochs (ep) of a dataloader that has a "
            "length"
        )
    return int(duration) * int(state.dataloader_len), present_batches(state)
