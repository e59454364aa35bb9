"""DeepSpeed's settings, as they follow from the user's and from what the Trainer was told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from composer.core.precision import Precision
from composer.utils import dist

__all__ = ["engine_settings", "threshold_of_clipping"]

_AUTO = "auto"
_PASSED_ON = frozenset(
    (
        "activation_checkpointing",
        "aio",
        "bf16",
        "comms_logger",
        "communication_data_type",
        "data_types",
        "dump_state",
        "flops_profiler",
        "fp16",
        "gradient_clipping",
        "gradient_predivide_factor",
        "memory_breakdown",
        "prescale_gradients",
        "steps_per_print",
        "timers",
        "wall_clock_breakdown",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "zero_optimization",
    )
)
_INSTEAD = {
    "amp": "set the Trainer's precision",
    "optimizer": "give the Trainer's optimizers",
    "scheduler": "give the Trainer's schedulers",
    "torch_autocast": "set the Trainer's precision",
}


def engine_settings(
    given: Mapping[str, Any],
    *,
    precision: Precision,
    clipping: float | None = None,
    microbatch_size: float | None = None,
    batch_size: int | None = None,
) -> dict[str, Any]:
    """Returns DeepSpeed's settings: the user's, with what the Trainer was told filled in.

    Args:
        given: The user's settings, as DeepSpeed documents them.
        precision: The Trainer's. ``amp_bf16`` keeps weights in fp32 unless ``bf16`` is switched on.
        clipping: The total norm to clip gradients to, if the Trainer has such an algorithm.
        microbatch_size: How many samples pass through the model at a time on a rank.
        batch_size: How many make a rank's batch.

    Raises:
        ValueError: If a setting is not supported, or contradicts the Trainer's.
    """
    config = {key: _copied(value) for key, value in given.items()}
    _check_batches(config, microbatch_size, batch_size)
    for key in config.keys() - _PASSED_ON:
        cure = _INSTEAD.get(key, f"leave it out; known are {', '.join(sorted(_PASSED_ON))}")
        raise ValueError(f"deepspeed_config: {key!r} is not supported here: {cure}.")
    _check_zero(config)
    _fill_precision(config, precision)
    _fill_clipping(config, clipping)
    config.setdefault("zero_allow_untested_optimizer", True)
    config.setdefault("zero_force_ds_cpu_optimizer", False)
    config.setdefault("timers", {"throughput": {"enabled": False}})
    return {**config, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}


def threshold_of_clipping(algorithms: Iterable[Any]) -> float | None:
    """Returns the norm that GradientClipping clips to, which DeepSpeed does in its place.

    Raises:
        ValueError: If it clips in another way, or there are two of them.
    """
    found = [
        a for a in algorithms if any(c.__name__ == "GradientClipping" for c in type(a).__mro__)
    ]
    if not found:
        return None
    kind = found[0].clipping_type
    if len(found) > 1 or kind != "norm":
        raise ValueError(
            f"deepspeed_config does not combine with {len(found)} GradientClipping of type "
            f"{kind!r}: DeepSpeed clips gradients, and by their total norm; give one with "
            "clipping_type='norm', or none."
        )
    return found[0].clipping_threshold


def _copied(value: Any) -> Any:
    return {k: _copied(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _check_batches(config: dict[str, Any], microbatch: float | None, batch: int | None) -> None:
    """Takes the sizes of batches out, after they agreed: the Trainer cuts and weighs batches."""
    is_whole = microbatch is not None and batch is not None and batch % microbatch == 0
    have = {
        "train_batch_size": None if batch is None else batch * dist.get_world_size(),
        "train_micro_batch_size_per_gpu": microbatch,
        "gradient_accumulation_steps": batch // microbatch if is_whole else None,  # type: ignore[operator]
    }
    for key, ours in have.items():
        value = config.pop(key, _AUTO)
        if value not in (_AUTO, ours):
            raise ValueError(
                f"deepspeed_config: {key} is {value!r}, and the Trainer has {ours}: it cuts "
                "batches by its dataloader and device_train_microbatch_size. Leave it out, or set "
                f"it to {_AUTO!r}."
            )


def _check_zero(config: dict[str, Any]) -> None:
    zero = config.get("zero_optimization")
    stage = zero.get("stage") if isinstance(zero, dict) else None
    if not isinstance(zero, dict) or stage not in (1, 2, 3):
        raise ValueError(
            f"deepspeed_config: zero_optimization.stage is {stage!r}; it must be 1, 2 or 3. "
            "Without ZeRO, leave deepspeed_config out."
        )
    for key in ("offload_optimizer", "offload_param"):
        device = (zero.get(key) or {}).get("device", "none")
        if device not in ("none", "cpu"):
            raise ValueError(
                f"deepspeed_config: zero_optimization.{key}.device is {device!r}; it must be 'cpu' "
                "or 'none': checkpoints are gathered from memory."
            )


def _fill_precision(config: dict[str, Any], precision: Precision) -> None:
    """Has DeepSpeed scale fp16 losses; in bf16, the Trainer's autocast alone is exact enough."""
    allowed = {"fp16": Precision.AMP_FP16, "bf16": Precision.AMP_BF16}
    if precision is Precision.AMP_FP8:
        raise ValueError("deepspeed_config: precision=amp_fp8 is not supported; use amp_bf16.")
    for key, wanted in allowed.items():
        section = config.setdefault(key, {})
        default = key == "fp16" and precision is wanted
        if section.get("enabled", _AUTO) == _AUTO:
            section["enabled"] = default
        if bool(section["enabled"]) > (precision is wanted) or default > bool(section["enabled"]):
            raise ValueError(
                f"deepspeed_config: {key}.enabled is {section['enabled']!r}, and the Trainer's "
                f"precision is {precision.value}; {key} goes with {wanted.value}."
            )
    accumulated = (config.get("data_types") or {}).get("grad_accum_dtype")
    stage = config["zero_optimization"]["stage"]
    if config["bf16"]["enabled"] and stage == 1 and accumulated in ("fp32", "float32"):
        raise ValueError(
            "deepspeed_config: bf16 weights with data_types.grad_accum_dtype=fp32 need "
            "zero_optimization.stage 2 or 3; it is 1."
        )


def _fill_clipping(config: dict[str, Any], clipping: float | None) -> None:
    asked = config.pop("gradient_clipping", _AUTO)
    if clipping is not None and asked not in (_AUTO, clipping):
        raise ValueError(
            f"deepspeed_config: gradient_clipping is {asked!r}, and GradientClipping clips to "
            f"{clipping}; keep one of them."
        )
    wanted = clipping if asked == _AUTO else asked
    if wanted is not None:
        config["gradient_clipping"] = wanted
