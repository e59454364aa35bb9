"""Sequence-length curriculum: each batch cut into many short sequences first, later into few."""

from composer.algorithms.seq_length_curriculum.seq_length_curriculum import (
    SeqLengthCurriculum,
    cut_sequences,
)

__all__ = ["SeqLengthCurriculum", "cut_sequences"]
