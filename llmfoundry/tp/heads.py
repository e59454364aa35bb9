"""How attention is split by heads: which ranks have which, and the one projection for all three.

Legend: B batch, S sequence, E model width.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, SequenceParallel

__all__ = ["FusedHeads", "WholeHeads", "norm_of_each_head"]


class WholeHeads(ParallelStyle):
    """Checks that the heads can be dealt out, and tells the layer which ones it keeps.

    A layer that counts its heads itself offers ``keep_heads(rank, size)``.

    Args:
        n_heads: Query heads of the layer.
        kv_n_heads: Key and value heads.
    """

    def __init__(self, n_heads: int, kv_n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.kv_n_heads = kv_n_heads

    def _apply(self, module: torch.nn.Module, device_mesh: Any) -> torch.nn.Module:
        size = device_mesh.size()
        if self.n_heads % size or self.kv_n_heads % size:
            raise ValueError(
                f"tensor_parallel_degree={size} cannot deal out {self.n_heads} query heads and "
                f"{self.kv_n_heads} key and value heads: it must divide both, so it must be a "
                f"divisor of {math.gcd(self.n_heads, self.kv_n_heads)}"
            )
        keep_heads: Any = getattr(module, "keep_heads", None)
        if keep_heads is not None:
            keep_heads(device_mesh.get_local_rank(), size)
        return module


class FusedHeads(ParallelStyle):
    """Splits a linear layer whose outputs are several blocks, each dealt out by itself.

    The parameters are kept in equal pieces in their own order, so that checkpoints do not know of
    the split. A forward gathers them, which moves less than its activations would, and each rank
    multiplies with the rows of its heads.

    Args:
        widths: The blocks' widths, for attention those of queries, keys and values.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.widths = tuple(widths)

    def _apply(self, module: torch.nn.Module, device_mesh: Any) -> torch.nn.Module:
        if type(module) is not torch.nn.Linear:
            raise ValueError(
                f"the fused projection is a {type(module).__name__}; tensor parallelism splits "
                "only torch.nn.Linear: use fc_type: torch"
            )
        for name, parameter in list(module.named_parameters(recurse=False)):
            sharded = distribute_tensor(
                parameter, device_mesh, [Shard(0)], src_data_rank=self.src_data_rank
            )
            module.register_parameter(name, torch.nn.Parameter(sharded, parameter.requires_grad))
        rank, size = device_mesh.get_local_rank(), device_mesh.size()
        own_rows, start = [], 0
        for width in self.widths:
            own_rows.append((start + rank * (width // size), width // size))
            start += width
        module.__class__ = _FusedHeadsLinear
        assert isinstance(module, _FusedHeadsLinear)
        module.own_rows = own_rows
        return module


class _FusedHeadsLinear(torch.nn.Linear):
    """A linear layer that multiplies with some rows of its weight only."""

    own_rows: list[tuple[int, int]]
    """Where this rank's rows begin, and how many there are."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns this rank's outputs for an input that all ranks of the group share."""
        mesh: Any = getattr(self.weight, "device_mesh", None)
        shared = DTensor.from_local(input, mesh, [Replicate()], run_check=False)
        # Each rank's gradient is that of its own outputs; the input's is their sum.
        x_BSE = shared.to_local(grad_placements=[Partial()])
        bias = None if self.bias is None else self._own(self.bias)
        return F.linear(x_BSE, self._own(self.weight), bias)

    def _own(self, parameter: Any) -> torch.Tensor:
        gathered = parameter.redistribute(placements=[Replicate()])
        whole = gathered.to_local(grad_placements=[Partial()])
        return torch.cat([whole.narrow(0, start, count) for start, count in self.own_rows])


def norm_of_each_head() -> ParallelStyle:
    """Returns the style of a norm over single heads, ``[B, S, heads, width]``."""
    return SequenceParallel(sequence_dim=2, use_local_output=True)
