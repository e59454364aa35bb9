"""The size of gradients, whole or sharded, on their device."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed

__all__ = ["as_sharded", "local_part", "total_norm", "with_sums_done"]


def as_sharded(tensor: torch.Tensor) -> Any:
    """Returns the tensor if it is a DTensor, else None; importing DTensor to ask costs 0.5 s."""
    return tensor if hasattr(tensor, "device_mesh") else None


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's shard of a sharded tensor (it shares memory), or the tensor itself."""
    sharded = as_sharded(tensor)
    return tensor if sharded is None else sharded.to_local()


def total_norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Returns the L2 norm over whole gradients; shards are summed over the axes of their mesh."""
    # Each rank sums what it holds. What is sharded over the same axes of one mesh is then summed
    # over their ranks at once; along the other axes all ranks hold the same.
    by_axes: dict[tuple[Any, tuple[int, ...]], list[torch.Tensor]] = defaultdict(list)
    for gradient in gradients:
        sharded = as_sharded(gradient)
        if sharded is None:
            by_axes[None, ()].append(gradient)
            continue
        sharded = with_sums_done(sharded)
        axes = [i for i, placement in enumerate(sharded.placements) if not placement.is_replicate()]
        by_axes[sharded.device_mesh, tuple(axes)].append(sharded.to_local())
    if not by_axes:
        return torch.zeros(())
    norms = []
    for (mesh, axes), shards in by_axes.items():
        norm = torch.nn.utils.get_total_norm(shards)
        if axes:
            square = norm.float().square()
            for axis in axes:
                torch.distributed.all_reduce(square, group=mesh.get_group(axis))
            norm = square.sqrt()
        norms.append(norm)
    if len(norms) == 1:
        return norms[0]
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0]) for norm in norms]))


def with_sums_done(sharded: Any) -> Any:
    """Returns the DTensor with its sums over ranks done, if any are pending."""
    if not any(placement.is_partial() for placement in sharded.placements):
        return sharded
    from torch.distributed.tensor import Replicate

    whole = [Replicate() if p.is_partial() else p for p in sharded.placements]
    return sharded.redistribute(placements=whole)
