"""What settings of parallelism mean on these ranks: the mesh, and the model spread over it."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim import Optimizer

from composer.core.precision import Precision
from composer.distributed.activation_checkpointing import (
    apply_ac,
    generate_composer_model_check_fn,
    memory_budget,
)
from composer.distributed.combinations import Feature
from composer.distributed.compiling import compile_model, take_meshes_in_graphs
from composer.distributed.context_parallel import prepare_cp_module
from composer.distributed.mesh import (
    CONTEXT,
    REPLICATE,
    SHARD,
    TENSOR,
    build_mesh,
    data_axes,
    num_copies_of_a_batch,
)
from composer.distributed.parallelize import (
    have_all_ranks_agree,
    init_fn_of,
    parallelize_composer_model,
)
from composer.distributed.param_init import meta_init
from composer.distributed.tensor_parallel import prepare_tp_module
from composer.utils import dist, reproducibility
from composer.utils.parallelism import CPConfig, FSDP2Config, ParallelismConfig, TPConfig

__all__ = ["Plan", "plan_parallelism"]


@dataclass
class Plan:
    """How the model is spread over the ranks; an empty plan means replicas."""

    sharding: FSDP2Config | None = None
    """Settings of sharding, if the model is sharded."""
    tp: TPConfig | None = None
    cp: CPConfig | None = None
    mesh: Any = None
    recomputing: FSDP2Config | None = None
    """Whose settings of activation checkpointing hold for a model that is not sharded."""

    @property
    def copies_of_a_batch(self) -> int:
        """How many neighbouring ranks work on one and the same batch."""
        return num_copies_of_a_batch(self.mesh)

    def features(self) -> set[Feature]:
        """Returns what takes part, for the check of combinations."""
        config = self.sharding or self.recomputing or FSDP2Config()
        recomputes = config.activation_checkpointing
        asked = {
            Feature.DDP: self.sharding is None and dist.get_world_size() > 1,
            Feature.SHARDING: self.sharding is not None,
            Feature.HYBRID: self.mesh is not None and REPLICATE in self.mesh.mesh_dim_names,
            Feature.TENSOR: self.tp is not None,
            Feature.CONTEXT: self.cp is not None,
            Feature.PARAMETER_OFFLOAD: config.cpu_offload,
            Feature.RECOMPUTING: bool(recomputes),
            Feature.OPERATORS: recomputes == "operators",
            Feature.ACTIVATION_OFFLOAD: config.activation_cpu_offload,
            Feature.MEMORY_BUDGET: memory_budget(recomputes) is not None,
            Feature.SHARDED_CHECKPOINTS: (
                self.sharding is not None and config.state_dict_type == "sharded"
            ),
            Feature.RANK_ZERO_LOADS: config.load_monolith_rank0_only,
        }
        return {feature for feature, is_asked in asked.items() if is_asked}

    def spread(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer | None,
        *,
        device: torch.device,
        precision: Precision,
        seed: int,
        compile_config: dict[str, Any] | None = None,
    ) -> bool:
        """Spreads a ComposerModel over the ranks, in place; tells whether it was compiled too.

        In this order: layers and sequences are split, activations recomputed, blocks compiled,
        units sharded, what is on ``meta`` initialised, and the new parameters handed to the
        optimizer.

        Args:
            model: The model.
            optimizer: Its optimizer, if there is one yet.
            device: Where this rank computes.
            precision: The run's precision.
            seed: What a model on ``meta`` draws its first weights from.
            compile_config: Settings of ``torch.compile``; a sharded model is compiled by blocks.
        """
        if self.sharding is None:
            with reproducibility.seed_context(seed):
                meta_init(model, init_fn_of(model))
            if self.recomputing is not None:
                _recompute(model, self.recomputing)
            return False
        sharding = self.sharding
        if have_all_ranks_agree(model, device):
            sharding = replace(sharding, sync_module_states=False)
        if self.tp is not None:
            if not any(parameter.is_meta for parameter in model.parameters()):
                model.to(device)
            prepare_tp_module(model, optimizer, self.tp)
        if self.cp is not None:
            prepare_cp_module(model, self.cp)
        compile_blocks = None
        if compile_config is not None:
            if self.tp is not None or self.cp is not None:
                take_meshes_in_graphs()
            compile_blocks = functools.partial(
                compile_model, config={**compile_config, "per_block": True}
            )
        with reproducibility.seed_context(seed):
            parallelize_composer_model(model, optimizer, sharding, precision, compile_blocks)
        _move_what_is_whole(model, device)
        return compile_config is not None


def _recompute(model: torch.nn.Module, config: FSDP2Config) -> None:
    if config.activation_checkpointing or config.activation_cpu_offload:
        apply_ac(
            model,
            config.activation_checkpointing,
            config.activation_cpu_offload,
            generate_composer_model_check_fn(model),
        )


def _move_what_is_whole(model: torch.nn.Module, device: torch.device) -> None:
    """Moves what is in no unit of sharding; units were moved when they were sharded."""
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None and not hasattr(parameter, "device_mesh"):
                parameter.data = parameter.data.to(device)
        for name, buffer in module._buffers.items():
            if buffer is not None and not hasattr(buffer, "device_mesh"):
                module._buffers[name] = buffer.to(device)


def plan_parallelism(settings: ParallelismConfig | None, device_type: str) -> Plan:
    """Settles the settings for this number of ranks, and makes the mesh.

    One process shards nothing: of its settings only activation checkpointing is kept.

    Args:
        settings: The settings; the meshes that they name are filled in.
        device_type: ``cpu`` or ``cuda``.

    Raises:
        ValueError: If the degrees do not fit the ranks, or layers or sequences are to be split
            without sharding.
    """
    if settings is None or settings.is_empty:
        return Plan()
    config = settings.fsdp2
    recomputing = config
    if settings.fsdp is not None:
        config = settings.fsdp.to_fsdp2()
        recomputing = config or FSDP2Config(
            activation_checkpointing=settings.fsdp.activation_checkpointing,
            activation_cpu_offload=settings.fsdp.activation_cpu_offload,
        )
    splits = settings.tp is not None or settings.cp is not None
    if config is None and splits:
        raise ValueError(
            "parallelism_config: tensor and context parallelism split what is sharded; give 'fsdp' "
            "or 'fsdp2' too (with data_parallel_shard_degree: 1 nothing else is sharded), and not "
            "sharding_strategy NO_SHARD"
        )
    if config is None or (dist.get_world_size() == 1 and not splits):
        return Plan(recomputing=recomputing)
    degrees = {
        REPLICATE: config.data_parallel_replicate_degree,
        SHARD: config.data_parallel_shard_degree,
        CONTEXT: settings.cp and settings.cp.context_parallel_degree,
        TENSOR: settings.tp and settings.tp.tensor_parallel_degree,
    }
    mesh = build_mesh(device_type, degrees)
    config.device_mesh = data_axes(mesh)
    if settings.fsdp is not None:
        settings.fsdp.device_mesh = config.device_mesh
    if settings.tp is not None:
        settings.tp.device_mesh = mesh[TENSOR]
    if settings.cp is not None:
        settings.cp.device_mesh = mesh[CONTEXT]
    return Plan(sharding=config, tp=settings.tp, cp=settings.cp, mesh=mesh)
