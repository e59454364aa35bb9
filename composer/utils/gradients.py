"""The size of gradients, whole or sharded, on their device."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["as_sharded", "total_norm"]


def as_sharded(tensor: torch.Tensor) -> Any:
    """Returns the tensor if it is a DTensor, else None; importing DTensor to ask costs 0.5 s."""
    return tensor if hasattr(tensor, "device_mesh") else None


def total_norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Returns the L2 norm over whole gradients; shards are summed over their own mesh."""
    # Tensors of different meshes cannot meet in one operation, so each mesh is reduced by itself.
    by_mesh: dict[object, list[torch.Tensor]] = defaultdict(list)
    for gradient in gradients:
        by_mesh[getattr(as_sharded(gradient), "device_mesh", None)].append(gradient)
    if not by_mesh:
        return torch.zeros(())
    norms = []
    for group in by_mesh.values():
        norm = torch.nn.utils.get_total_norm(group)
        sharded = as_sharded(norm)
        norms.append(norm if sharded is None else sharded.full_tensor())
    if len(norms) == 1:
        return norms[0]
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
