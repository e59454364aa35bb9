"""Sequence length warm-up: begins training with shorter sequences."""

from composer.algorithms.seq_length_warmup.seq_length_warmup import (
    SeqLengthWarmup,
    set_batch_sequence_length,
)

__all__ = ["SeqLengthWarmup", "set_batch_sequence_length"]
