"""Which features of parallel training combine: the one table, for the check and for the docs.

A pair that is not in `REFUSED` combines; ``docs/parallelism.md`` shows the same table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum
from typing import NamedTuple

__all__ = ["NEEDED", "REFUSED", "Feature", "Refused", "check_combination", "matrix"]


class Feature(Enum):
    """What takes part in a combination; the value is its name in messages and in the docs."""

    ZERO = "DeepSpeed ZeRO (deepspeed_config)"
    DDP = "replicas (DDP)"
    SHARDING = "sharding (fsdp, fsdp2)"
    HYBRID = "hybrid sharding (data_parallel_replicate_degree)"
    TENSOR = "tensor parallelism (tp)"
    CONTEXT = "context parallelism (cp)"
    META = "init_device: meta or mixed"
    MIXED = "init_device: mixed"
    PARAMETER_OFFLOAD = "cpu_offload"
    RECOMPUTING = "activation_checkpointing"
    OPERATORS = "activation_checkpointing: operators"
    ACTIVATION_OFFLOAD = "activation_cpu_offload"
    MEMORY_BUDGET = "activation_checkpointing: {memory_budget: ...}"
    COMPILING = "compile_config"
    PARTITIONING = "compile_config with a backend that plans memory (inductor, aot_eager)"
    AUTO_SIZE = "device_train_microbatch_size: auto"
    CLOSURE = "an optimizer that runs the passes itself (SAM, LBFGS)"
    SECOND_ORDER = "an algorithm with backwards_create_graph"
    UNUSED_PARAMETERS = "an algorithm with find_unused_parameters"
    WEIGHT_COPIES = "an algorithm that averages weights (EMA, SWA)"
    FREEZING = "an algorithm that freezes layers while training (LayerFreezing)"
    SYNC_STRATEGY = "ddp_sync_strategy"
    SHARDED_CHECKPOINTS = "state_dict_type: sharded"
    SAVED_METRICS = "save_metrics"
    MEETING = "ranks that meet in each pass (lbl_process_group, moe_world_size)"
    RANK_ZERO_LOADS = "load_monolith_rank0_only"
    ADAPTERS = "adapters (LoRA)"
    FEW_BITS = "weights in few bits (quantization)"
    READING_GRADIENTS = "a callback that reads gradients (OptimizerMonitor, StabilityMonitor)"


class Refused(NamedTuple):
    """Two features that do not combine, and what to do instead."""

    one: Feature
    other: Feature
    reason: str


_F = Feature
_WAITING = (
    "a rank whose memory ran out would leave the others waiting inside of a pass; give a number of "
    "samples"
)
_ZERO_REASONS = {
    _F.META: "DeepSpeed would spread weights that are not there yet; set init_device: cpu, or use "
    "parallelism_config",
    _F.COMPILING: "DeepSpeed's hooks on each module are not compiled; leave one of them out",
    _F.AUTO_SIZE: _WAITING,
    _F.CLOSURE: "the engine steps once, after its own passes; use another optimizer",
    _F.SECOND_ORDER: "the engine frees the graph with each backward pass; train with replicas",
    _F.UNUSED_PARAMETERS: "ranks that leave out different layers would wait for each other; train "
    "with replicas",
    _F.WEIGHT_COPIES: "its copy of the model would not be spread; train with replicas",
    _F.FREEZING: "pieces are cut when training starts; freeze parameters before, with "
    "requires_grad_(False)",
    _F.SYNC_STRATEGY: "it says when replicas exchange gradients, and the stage of ZeRO says so "
    "here; leave it out",
    _F.FEW_BITS: "the engine would spread packed numbers; train with replicas",
    _F.READING_GRADIENTS: "gradients are in the engine, in pieces; leave the callback out",
}
REFUSED = (
    *(Refused(_F.ZERO, other, reason) for other, reason in _ZERO_REASONS.items()),
    Refused(_F.SHARDING, _F.AUTO_SIZE, _WAITING),
    Refused(_F.MEETING, _F.AUTO_SIZE, _WAITING),
    Refused(
        _F.SHARDING,
        _F.CLOSURE,
        "its first pass needs gradients that stay on their rank; train with replicas, or with "
        "another optimizer",
    ),
    Refused(
        _F.SHARDING,
        _F.SECOND_ORDER,
        "the weights of the first pass are gone by the second; train with replicas",
    ),
    Refused(
        _F.SHARDING,
        _F.UNUSED_PARAMETERS,
        "ranks that leave out different layers would wait for each other; train with replicas",
    ),
    Refused(
        _F.SHARDING,
        _F.FREEZING,
        "units of sharding are fixed when training starts; freeze parameters before, with "
        "requires_grad_(False)",
    ),
    Refused(
        _F.SHARDING,
        _F.SYNC_STRATEGY,
        "it says when replicas exchange gradients, and sharded ones are reduced with each backward "
        "pass; leave it out",
    ),
    Refused(
        _F.SHARDING,
        _F.FEW_BITS,
        "a shard of packed numbers loses their scales, and results would be wrong; train with "
        "replicas, whose base is small already",
    ),
    Refused(
        _F.SHARDED_CHECKPOINTS,
        _F.SAVED_METRICS,
        "metrics have no shards; set save_metrics=False or state_dict_type: full",
    ),
    Refused(
        _F.TENSOR,
        _F.RANK_ZERO_LOADS,
        "load_monolith_rank0_only is not supported with tensor parallelism; all ranks read the "
        "file then: set it to false",
    ),
    Refused(
        _F.TENSOR,
        _F.MIXED,
        "rank 0's weights are cut before they could be sent; set init_device: meta, which starts "
        "with the same weights",
    ),
    Refused(
        _F.TENSOR,
        _F.ACTIVATION_OFFLOAD,
        "torch does not offload what split layers keep; compute it again, with "
        "activation_checkpointing",
    ),
    Refused(
        _F.CONTEXT,
        _F.OPERATORS,
        "the causal mask of a share cannot be made where torch watches operators; set "
        "activation_checkpointing: true",
    ),
    Refused(
        _F.TENSOR,
        _F.ADAPTERS,
        "layers with an adapter beside them are not plain torch.nn.Linear, which is all that is "
        "split; shard the model instead",
    ),
    Refused(
        _F.META,
        _F.DDP,
        "replicas are not initialised where they train; set init_device: cpu, or shard the model",
    ),
)

NEEDED = (
    Refused(
        _F.MEMORY_BUDGET,
        _F.PARTITIONING,
        "it is torch.compile that chooses what to keep and what to compute again",
    ),
)
"""Features that are nothing without another."""


def check_combination(features: Collection[Feature]) -> None:
    """Refuses features that do not combine, or lack another.

    Raises:
        ValueError: If two of them do not; all such pairs are listed.
    """
    lines = [
        f"{one.value} does not combine with {other.value}: {why}"
        for one, other, why in REFUSED
        if one in features and other in features
    ]
    lines += [
        f"{one.value} needs {other.value}: {why}"
        for one, other, why in NEEDED
        if one in features and other not in features
    ]
    if lines:
        raise ValueError("; ".join(lines) + ". See docs/parallelism.md for what combines.")


def matrix() -> Iterator[tuple[str, str, str]]:
    """Yields the rows of the table in the docs: two features, and why they do not combine."""
    for one, other, reason in REFUSED:
        yield one.value, other.value, reason
    for one, other, reason in NEEDED:
        yield one.value, f"no {other.value}", reason
