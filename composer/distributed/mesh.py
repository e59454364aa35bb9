"""The mesh of ranks: the one place that counts them and names the axes of parallelism."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from composer.utils import dist
from composer.utils.misc import ParallelismType

__all__ = [
    "build_mesh",
    "data_axes",
    "num_copies_of_a_batch",
    "num_copies_of_activations",
    "settle_degrees",
]

REPLICATE = ParallelismType.DATA_PARALLEL_REPLICATE.value
SHARD = ParallelismType.DATA_PARALLEL_SHARD.value
CONTEXT = ParallelismType.CONTEXT_PARALLEL.value
TENSOR = ParallelismType.TENSOR_PARALLEL.value
_AXES = (REPLICATE, SHARD, CONTEXT, TENSOR)
"""From the slowest links to the fastest: neighbouring ranks share a layer."""


def settle_degrees(degrees: dict[str, int | None], world_size: int) -> dict[str, int]:
    """Returns the size of each axis that is asked for, in the order of the mesh.

    Args:
        degrees: The size by axis; None leaves the axis out, and -1, once at most, takes the ranks
            that are left.
        world_size: How many ranks there are.

    Raises:
        ValueError: If the sizes do not multiply to the number of ranks.
    """
    sizes = {axis: size for axis in _AXES if (size := degrees.get(axis)) is not None}
    shown = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if any(size < 1 for size in sizes.values() if size != -1) or len(open_axes) > 1:
        raise ValueError(
            f"parallelism over {shown}: a degree is a positive number, or -1 for the ranks that "
            "are left, and only one of them can be -1"
        )
    known = math.prod(size for size in sizes.values() if size != -1)
    if open_axes and world_size % known == 0:
        sizes[open_axes[0]] = world_size // known
    if math.prod(sizes.values()) != world_size or open_axes and world_size % known:
        raise ValueError(
            f"parallelism over {shown} does not fit {world_size} ranks: the degrees must multiply "
            "to the number of ranks; set one to -1 to have it follow"
        )
    return sizes


def build_mesh(device_type: str, degrees: dict[str, int | None]) -> Any:
    """Makes the named mesh of all ranks, with the axes that are asked for.

    Args:
        device_type: ``cpu`` or ``cuda``.
        degrees: As for `settle_degrees`.
    """
    from torch.distributed.device_mesh import init_device_mesh

    sizes = settle_degrees(degrees, dist.get_world_size())
    return init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def data_axes(mesh: Any) -> Any:
    """Returns the part of the mesh over which parameters are sharded and gradients averaged.

    Ranks of one context group hold parts of one sequence. To the weights that is one more way of
    sharing a batch, so they shard over those ranks too.
    """
    names = [axis for axis in mesh.mesh_dim_names if axis != REPLICATE or mesh[axis].size() > 1]
    if CONTEXT in names:
        folded = mesh[SHARD, CONTEXT]._flatten("data_parallel_shard_context")
        return mesh._concatenate([mesh[REPLICATE], folded]) if REPLICATE in names else folded
    wanted = tuple(axis for axis in (REPLICATE, SHARD) if axis in names)
    return mesh[wanted]


def num_copies_of_a_batch(mesh: Any) -> int:
    """Returns how many neighbouring ranks work on one and the same batch."""
    return _size(mesh, (CONTEXT, TENSOR))


def num_copies_of_activations(mesh: Any) -> int:
    """Returns how many neighbouring ranks have the same activations between layers."""
    return _size(mesh, (TENSOR,))


def _size(mesh: Any, axes: Sequence[str]) -> int:
    if mesh is None or mesh.mesh_dim_names is None:
        return 1
    return math.prod(mesh[axis].size() for axis in axes if axis in mesh.mesh_dim_names)
