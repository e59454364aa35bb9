"""Face of the settings of mixtures of experts, by megablocks' names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed import GroupMember
from torch.distributed.device_mesh import DeviceMesh

from llmfoundry.models.layers.mb_moe import expert_mesh
from llmfoundry.models.layers.moe_settings import config_moe_args

__all__ = ["config_megablocks_moe_args", "config_moe_args", "get_megablocks_device_mesh"]


def get_megablocks_device_mesh(
    device_mesh_cfg: Sequence[int] | None, moe_world_size: int, world_size: int
) -> DeviceMesh:
    """Returns the mesh of all ranks: copies of the experts, and ranks that share one.

    Args:
        device_mesh_cfg: The degrees by which the model is sharded, one or none.
        moe_world_size: Ranks that share the experts.
        world_size: All ranks.

    Raises:
        ValueError: There are copies of the sharded model, or the ranks are no multiple.
    """
    if device_mesh_cfg is not None and list(device_mesh_cfg) != [world_size]:
        raise ValueError(
            f"device_mesh={list(device_mesh_cfg)}: experts are shared by ranks only where one copy "
            f"of the model is sharded over all {world_size} ranks. Leave device_mesh out."
        )
    return expert_mesh(moe_world_size, world_size, GroupMember.WORLD)


def config_megablocks_moe_args(
    ffn_config: Mapping[str, Any],
    d_model: int,
    expansion_ratio: int | float,
    n_layers: int,
    get_device_mesh: Callable[..., DeviceMesh] = get_megablocks_device_mesh,
) -> dict[str, Any]:
    """Returns the arguments of mb_moe and mb_dmoe; see ``config_moe_args``.

    Args:
        ffn_config: The settings, of mb_dmoe if there is no ``ffn_type``.
        d_model: Width of the model.
        expansion_ratio: Hidden width of an expert over ``d_model``.
        n_layers: The model's depth.
        get_device_mesh: Takes the arguments of ``get_megablocks_device_mesh`` by name, and makes
            the ``device_mesh`` where ranks share experts.

    Raises:
        ValueError: A setting is unknown, out of range or without effect.
    """
    settings = {"ffn_type": "mb_dmoe", **ffn_config}
    args = config_moe_args(settings, d_model, expansion_ratio, n_layers)
    if args["moe_world_size"] > 1:
        args["device_mesh"] = get_device_mesh(
            device_mesh_cfg=args["device_mesh"],
            moe_world_size=args["moe_world_size"],
            world_size=dist.get_world_size() if dist.is_initialized() else 1,
        )
    return args
