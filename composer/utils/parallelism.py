"""Settings of parallel training, and how the settings of older releases translate.

All sharding is torch's ``fully_shard``. `FSDPConfig` keeps the keys that recipes were written with;
`FSDPConfig.to_fsdp2` says what each of them means now.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from composer.utils import dist

__all__ = [
    "CPConfig",
    "FSDP2Config",
    "FSDPConfig",
    "ParallelismConfig",
    "TPConfig",
    "parse_parallelism_config",
    "settle_parallelism",
]

_RESHARDS_OF_STRATEGY = {
    "FULL_SHARD": True,
    "HYBRID_SHARD": True,
    "SHARD_GRAD_OP": False,
    "_HYBRID_SHARD_ZERO2": False,
}
_NO_SHARD = "NO_SHARD"

_KEPT = (
    "activation_checkpointing",
    "activation_cpu_offload",
    "state_dict_type",
    "load_monolith_rank0_only",
    "mixed_precision",
    "sync_module_states",
    "verbose",
    "data_parallel_shard_degree",
    "data_parallel_replicate_degree",
    "sharded_ckpt_prefix_dir",
)
"""Keys that mean the same under ``fully_shard``."""

_WITHOUT_MEANING = (
    "activation_checkpointing_reentrant",
    "auto_wrap",
    "te_checkpoint_wrapper",
    "te_shard_fp8_weight",
    "backward_prefetch",
    "backward_prefetch_limit",
    "forward_prefetch",
    "forward_prefetch_limit",
    "limit_all_gathers",
    "use_orig_params",
)
"""Keys that tuned the old engine's speed or memory: they are warned about if changed."""

_REFUSED = (
    "ignored_modules",
    "keep_low_precision_grads",
    "load_planner",
    "process_group",
    "save_planner",
)
"""Keys that would change results and have no counterpart: they are refused if changed."""


def _unknown(given: Mapping[str, Any], known: set[str], what: str) -> str | None:
    """Returns what is to be said about keys that there are not; None if all are known."""
    unknown = sorted(given.keys() - known)
    if not unknown:
        return None
    hints = []
    for key in unknown:
        close = difflib.get_close_matches(key, known, n=1)
        hints.append(f"{key!r}" + (f" (did you mean {close[0]!r}?)" if close else ""))
    return f"{what} has no setting {', '.join(hints)}; it has {', '.join(sorted(known))}"


def _refuse_unknown(given: Mapping[str, Any], known: set[str], what: str) -> None:
    if (said := _unknown(given, known, what)) is not None:
        raise ValueError(said)


def _check_state_dict_type(state_dict_type: str | None) -> None:
    if state_dict_type not in (None, "full", "sharded"):
        raise ValueError(f"state_dict_type {state_dict_type!r} is not one of 'full' and 'sharded'")


@dataclass
class FSDP2Config:
    """How the model is sharded by torch's ``fully_shard``."""

    device_mesh: Any = None
    """The mesh to shard over; made from the degrees below if None."""
    reshard_after_forward: bool | int = True
    """Whether full parameters are freed between forward and backward; a number of ranks keeps them
    sharded over that many."""
    activation_checkpointing: bool | str | dict[str, Any] = False
    """Whether, or how, activations are computed again in the backward pass instead of kept: true or
    "full", {"every": n}, "operators" or {"memory_budget": share}."""
    activation_cpu_offload: bool = False
    """Whether kept activations wait on the CPU."""
    cpu_offload: bool = False
    """Whether parameters, gradients and moments live on the CPU between uses."""
    num_units_to_prefetch: int | None = None
    """How many units ahead parameters are gathered; torch's default (the next one) if None."""
    state_dict_type: str = "sharded"
    """How checkpoints are written: "sharded" (a folder) or "full" (one file)."""
    load_monolith_rank0_only: bool = False
    """Whether only rank 0 reads a one-file checkpoint, and sends the others their shards."""
    mixed_precision: str | dict[str, Any] = "DEFAULT"
    """FULL (no casting), DEFAULT (parameters in the run's precision, sums in float32) or PURE."""
    verbose: bool = False
    """Whether the sharding is logged."""
    data_parallel_shard_degree: int = -1
    """Ranks that share one copy of the model; -1 for all that are left."""
    data_parallel_replicate_degree: int | None = None
    """Copies of the sharded model."""
    sharded_ckpt_prefix_dir: str = "ep{epoch}-ba{batch}"
    """The folder name of a sharded checkpoint."""
    sync_module_states: bool = False
    """Whether rank 0's weights are sent to the others when the model is sharded."""
    load_planner: Any = field(default=None, init=False)
    save_planner: Any = field(default=None, init=False)
    use_orig_params: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        _check_state_dict_type(self.state_dict_type)

    @classmethod
    def settable_attrs(cls) -> set[str]:
        """Returns the names of the settings."""
        return {one.name for one in fields(cls) if one.init}

    @classmethod
    def from_compatible_attrs(cls, attrs: Mapping[str, Any]) -> FSDP2Config:
        """Makes the settings from a dictionary that may have keys of the old engine.

        Keys that nobody knows, and keys that only tuned the old engine, are warned about; keys that
        would change results are errors.
        """
        known = {one.name for one in fields(FSDPConfig)} | cls.settable_attrs()
        if (said := _unknown(attrs, known, "fsdp_config")) is not None:
            warnings.warn(f"{said}. What it does not have is left out.", UserWarning, stacklevel=2)
        attrs = {key: value for key, value in attrs.items() if key in known}
        old = {key: value for key, value in attrs.items() if key not in cls.settable_attrs()}
        translated = FSDPConfig(**old).to_fsdp2()
        if translated is None:
            raise ValueError(
                "sharding_strategy NO_SHARD asks for a model that is not sharded: leave "
                "fsdp_config out"
            )
        settings: dict[str, Any] = {"reshard_after_forward": translated.reshard_after_forward}
        settings.update((key, attrs[key]) for key in attrs if key in cls.settable_attrs())
        return cls(**settings)


@dataclass
class TPConfig:
    """How layers are split over ranks by torch's tensor parallelism."""

    device_mesh: Any = None
    """The mesh to split over; made from the degree if None."""
    tensor_parallel_degree: int = 1
    """Ranks that share one layer."""
    layer_plan: Any = None
    """torch's ``parallelize_plan``: how each module is split."""


@dataclass
class CPConfig:
    """How sequences are split over ranks."""

    context_parallel_degree: int = 1
    """Ranks that share one sequence."""
    device_mesh: Any = None
    """The mesh to split over; made from the degree if None."""


@dataclass(init=False)
class FSDPConfig:
    """The sharding settings of older recipes, translated by `to_fsdp2`.

    Raises:
        ValueError: If a setting is unknown, or asks for what ``fully_shard`` does not do.
    """

    activation_checkpointing: bool = False
    activation_checkpointing_reentrant: bool = True
    activation_cpu_offload: bool = False
    auto_wrap: bool = True
    te_checkpoint_wrapper: bool = False
    te_shard_fp8_weight: bool = False
    backward_prefetch: str = "BACKWARD_POST"
    backward_prefetch_limit: int = 1
    cpu_offload: bool = False
    data_parallel_shard_degree: int = -1
    data_parallel_replicate_degree: int | None = None
    forward_prefetch: bool = False
    forward_prefetch_limit: int = 1
    ignored_modules: Any = None
    keep_low_precision_grads: bool = False
    limit_all_gathers: bool = True
    load_monolith_rank0_only: bool = False
    load_planner: Any = None
    mixed_precision: str | dict[str, Any] = "DEFAULT"
    process_group: Any = None
    save_planner: Any = None
    sharded_ckpt_prefix_dir: str = "ep{epoch}-ba{batch}"
    sharding_strategy: str = "FULL_SHARD"
    state_dict_type: str = "full"
    sync_module_states: bool = False
    use_orig_params: bool = True
    verbose: bool = False

    def __init__(self, **kwargs: Any) -> None:
        if "device_mesh" in kwargs or "_device_mesh" in kwargs:
            raise ValueError(
                "Directly specifying device mesh for FSDP was deprecated. Set "
                "data_parallel_shard_degree and data_parallel_replicate_degree instead"
            )
        _refuse_unknown(kwargs, {one.name for one in fields(self)}, "fsdp_config")
        for one in fields(self):
            setattr(self, one.name, kwargs.get(one.name, one.default))
        self.device_mesh: Any = None
        _check_state_dict_type(self.state_dict_type)
        if self.cpu_offload:
            raise ValueError("cpu_offload=True is not supported: it was slower than sharding more")
        if self.activation_cpu_offload and not self.use_orig_params:
            raise ValueError(
                "activation_cpu_offload=True is not supported with use_orig_params=False."
            )
        if self.sharding_strategy not in (*_RESHARDS_OF_STRATEGY, _NO_SHARD):
            raise ValueError(
                f"sharding_strategy {self.sharding_strategy!r} is not one of "
                f"{', '.join((*_RESHARDS_OF_STRATEGY, _NO_SHARD))}"
            )

    def to_fsdp2(self) -> FSDP2Config | None:
        """Returns what these settings mean under ``fully_shard``; None for NO_SHARD, which is DDP.

        Raises:
            ValueError: If a setting that would change results has no counterpart.
        """
        changed = {one.name for one in fields(self) if getattr(self, one.name) != one.default}
        refused = sorted(changed.intersection(_REFUSED))
        if refused:
            raise ValueError(
                f"fsdp_config sets {', '.join(refused)}, which torch's fully_shard cannot do and "
                "which would change results; take it out"
            )
        idle = sorted(changed.intersection(_WITHOUT_MEANING))
        numbers = self.mixed_precision
        if isinstance(numbers, Mapping) and numbers.get("buffer_dtype") is not None:
            idle.append("mixed_precision.buffer_dtype")
        if idle:
            warnings.warn(
                f"fsdp_config sets {', '.join(idle)}, which only tuned the old engine and has no "
                "meaning under torch's fully_shard; take it out",
                stacklevel=2,
            )
        if self.sharding_strategy == _NO_SHARD:
            return None
        kept = {key: getattr(self, key) for key in _KEPT}
        is_hybrid = "HYBRID" in self.sharding_strategy
        if is_hybrid and self.data_parallel_replicate_degree is None:
            kept["data_parallel_replicate_degree"] = -1
            if self.data_parallel_shard_degree == -1:
                # As the old engine did: the ranks of a node share one copy of the model.
                kept["data_parallel_shard_degree"] = dist.get_local_world_size()
        return FSDP2Config(
            device_mesh=self.device_mesh,
            reshard_after_forward=_RESHARDS_OF_STRATEGY[self.sharding_strategy],
            **kept,
        )


@dataclass
class ParallelismConfig:
    """All settings of parallel training."""

    fsdp: FSDPConfig | None = None
    """Sharding, in the settings of older recipes."""
    tp: TPConfig | None = None
    """Tensor parallelism."""
    fsdp2: FSDP2Config | None = None
    """Sharding."""
    cp: CPConfig | None = None
    """Context parallelism."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for."""
        return all(getattr(self, one.name) is None for one in fields(self))


def _parse_fsdp(config: Any) -> FSDPConfig | FSDP2Config | None:
    if config is None or isinstance(config, (FSDPConfig, FSDP2Config)):
        return config
    # How programs chose between the two generations of the engine; the second is all there is now,
    # and what is left of the first is its settings and its way of writing checkpoints.
    if os.environ.get("FSDP_VERSION", "1") == "2":
        return FSDP2Config.from_compatible_attrs(config)
    old = {one.name for one in fields(FSDPConfig)}
    if config.keys() & (FSDP2Config.settable_attrs() - old - {"device_mesh"}):
        _refuse_unknown(config, old | FSDP2Config.settable_attrs(), "fsdp_config")
        # One setting more must not change how checkpoints are written.
        return FSDP2Config.from_compatible_attrs({"state_dict_type": "full", **config})
    return FSDPConfig(**config)


def parse_parallelism_config(
    config: ParallelismConfig | Mapping[str, Any] | None,
) -> ParallelismConfig | None:
    """Makes the settings of a dictionary with ``fsdp``, ``fsdp2``, ``tp``, ``cp``.

    A dictionary under ``fsdp`` has the settings of older recipes, unless it has one that only
    FSDP2Config has, or the environment says ``FSDP_VERSION=2``.

    Returns:
        The settings; None if all are empty.

    Raises:
        ValueError: If a key is unknown, or two ways of sharding are asked for.
    """
    if config is None:
        return None
    if isinstance(config, ParallelismConfig):
        parsed = config
    else:
        _refuse_unknown(
            config, {one.name for one in fields(ParallelismConfig)}, "parallelism_config"
        )
        fsdp, fsdp2 = _parse_fsdp(config.get("fsdp")), config.get("fsdp2")
        if isinstance(fsdp2, Mapping):
            _refuse_unknown(
                fsdp2,
                {one.name for one in fields(FSDPConfig)} | FSDP2Config.settable_attrs(),
                "parallelism_config['fsdp2']",
            )
            fsdp2 = FSDP2Config.from_compatible_attrs(fsdp2)
        tp, cp = config.get("tp"), config.get("cp")
        if isinstance(fsdp, FSDP2Config) and fsdp2 is None:
            fsdp, fsdp2 = None, fsdp
        parsed = ParallelismConfig(
            fsdp=fsdp,  # type: ignore[arg-type]  # if it is of the second kind, it is refused below
            fsdp2=fsdp2,
            tp=_parsed(TPConfig, tp, "tp"),
            cp=_parsed(CPConfig, cp, "cp"),
        )
    if parsed.fsdp is not None and parsed.fsdp2 is not None:
        raise ValueError(
            "parallelism_config has both fsdp and fsdp2: they are two ways to say how the model is "
            "sharded; leave one out"
        )
    return None if parsed.is_empty else parsed


def _parsed(kind: Any, config: Any, key: str) -> Any:
    if config is None or isinstance(config, kind):
        return config
    _refuse_unknown(config, {one.name for one in fields(kind)}, f"parallelism_config[{key!r}]")
    return kind(**config)


def settle_parallelism(
    config: ParallelismConfig | None, save_metrics: bool = False
) -> ParallelismConfig | None:
    """Leaves out what splits nothing, and checks what is left; None if that is nothing.

    Args:
        config: The settings; they are not changed.
        save_metrics: Whether checkpoints keep the metrics.

    Raises:
        ValueError: If settings contradict each other.
    """
    if config is None:
        return None
    tp, cp, sharding = config.tp, config.cp, config.fsdp2 or config.fsdp
    if tp is not None and tp.tensor_parallel_degree == 1:
        warnings.warn(
            "Received tensor_parallel_degree of 1, which is a no-op. Tensor parallelism will not "
            "be used.",
            UserWarning,
            stacklevel=3,
        )
        tp = None
    if cp is not None and cp.context_parallel_degree == 1:
        cp = None
    if tp is not None and (sharding is None or not sharding.use_orig_params):
        raise ValueError(
            "Tensor parallelism requires 'fsdp' or 'fsdp2' beside 'tp' in parallelism_config, and "
            "use_orig_params: true: the ranks that do not share a layer share the rest"
        )
    if tp is not None and sharding is not None and sharding.load_monolith_rank0_only:
        raise ValueError(
            "load_monolith_rank0_only is not supported with tensor parallelism: set it to false; "
            "all ranks read the file then"
        )
    if sharding is not None and sharding.state_dict_type == "sharded" and save_metrics:
        raise ValueError(
            "save_metrics=True is not supported with state_dict_type: sharded: metrics have no "
            "shards; set one of them otherwise"
        )
    settled = ParallelismConfig(fsdp=config.fsdp, fsdp2=config.fsdp2, tp=tp, cp=cp)
    return None if settled.is_empty else settled
