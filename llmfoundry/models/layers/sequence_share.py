"""What a model asks of the object that splits sequences over ranks.

Declared here, because exported models carry their code with them and stand alone.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

__all__ = ["SequenceShare"]


class SequenceShare(Protocol):
    """A rank's share of sequences; `composer.distributed.context_parallel` has the real one."""

    size: int

    def piece_length(self, length: int) -> int:
        """Returns how long each of the pieces of a sequence is."""
        ...

    def ends(self, length: int) -> tuple[int, int]:
        """Returns where the two pieces of this rank end in the (padded) sequence."""
        ...

    def pad(self, whole: torch.Tensor, fill: float = 0, dim: int = 1) -> torch.Tensor:
        """Returns a sequence padded to the length at which all pieces are full."""
        ...

    def keep(self, whole: torch.Tensor, fill: float = 0, dim: int = 1) -> torch.Tensor:
        """Returns this rank's two pieces of a whole sequence, one after the other."""
        ...

    def gather(self, share: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """Returns the (padded) sequence of which each rank gives its share."""
        ...

    def gather_each(self, shares: Sequence[torch.Tensor], dim: int = 1) -> list[torch.Tensor]:
        """Returns the sequences of which each rank gives its shares."""
        ...
