"""The settings of mixtures of experts: ``ffn_type`` torch_dmoe, mb_moe and mb_dmoe."""

import difflib
from collections.abc import Mapping
from typing import Any

from llmfoundry.models.layers.ffn import resolve_ffn_hidden_size

__all__ = ["MEGABLOCKS", "MIXTURES", "config_moe_args"]

MEGABLOCKS = ("mb_moe", "mb_dmoe")
MIXTURES = ("torch_dmoe", *MEGABLOCKS)
"""FFN names that mean a mixture of experts."""

TORCH_KEYS = {
    "moe_num_experts",
    "moe_top_k",
    "mlp_type",
    "moe_jitter_eps",
    "moe_normalize_expert_weights",
    "uniform_expert_assignment",
}
"""Keys that ``torch_dmoe`` must be given."""
SHARED_KEYS = {"ffn_type", "fc_type", "ffn_hidden_size", "ffn_act_fn"}
"""Keys that other FFNs have too."""
MEGABLOCKS_DEFAULTS: dict[str, Any] = {
    "moe_world_size": None,
    "moe_num_experts": 1,
    "moe_top_k": 1,
    "moe_capacity_factor": 1,
    "moe_normalize_expert_weights": None,
    "moe_jitter_eps": None,
    "moe_loss_weight": 0.1,
    "moe_lbl_in_fp32": False,
    "lbl_process_group": None,
    "moe_zloss_weight": 0.0,
    "moe_zloss_in_fp32": False,
    "mlp_type": "mlp",
    "mlp_impl": "sparse",
    "memory_optimized_mlp": False,
    "uniform_expert_assignment": False,
    "shared_expert": False,
    "shared_expert_hidden_size": None,
    "shared_expert_weighted_sum": False,
    "bias": True,
    "device_mesh": None,
}
FIXED: dict[str, tuple[Any, str]] = {
    "fp16": (False, "the run's precision says it"),
    "bf16": (False, "the run's precision says it"),
    "return_bias": (False, "the bias is added"),
    "remat_act_fn": (True, "memory_optimized_mlp says what is computed again"),
    "fc_cls": (None, "fc_type says it"),
    "fc_kwargs": (None, "fc_type says it"),
    "hidden_size": (None, "it is d_model"),
    "num_layers": (None, "it is n_layers"),
    "activation_fn": (None, "ffn_act_fn says it"),
    "device": (None, "init_device says it"),
    "init_method": (None, "init_config says it"),
    "output_layer_init_method": (None, "init_config says it"),
    "moe_expert_model_parallelism": (False, "moe_world_size says it"),
    "expert_parallel_group": (None, "moe_world_size says it"),
    "pipeline_model_parallel_size": (1, "there are no pipelines"),
    "num_layers_per_virtual_pipeline_stage": (None, "there are no pipelines"),
}
"""megablocks' keys that have no effect here: the value they may stand with, and why."""


def _check_known(given: Mapping[str, Any], known: set[str], kind: str) -> None:
    unknown = sorted(given.keys() - known - SHARED_KEYS)
    if not unknown:
        return
    hints = []
    for key in unknown:
        close = difflib.get_close_matches(key, known | SHARED_KEYS, n=1)
        hints.append(f"{key!r}" + (f" (did you mean {close[0]!r}?)" if close else ""))
    raise ValueError(
        f"Invalid arguments to {kind}: {', '.join(hints)}. It has {', '.join(sorted(known))}, "
        "ffn_hidden_size and ffn_act_fn."
    )


def _check_numbers(args: Mapping[str, Any]) -> None:
    experts, top_k = args["moe_num_experts"], args["moe_top_k"]
    if not 1 <= top_k <= experts:
        raise ValueError(
            f"moe_top_k={top_k} experts compute each token, which must be at least 1 and at most "
            f"moe_num_experts={experts}."
        )
    if args["mlp_type"] not in ("mlp", "glu"):
        raise ValueError(f"mlp_type={args['mlp_type']!r} is not one of mlp and glu.")
    eps = args["moe_jitter_eps"]
    if eps is not None and not 0 <= eps < 1:
        raise ValueError(f"moe_jitter_eps={eps} must be at least 0 and less than 1.")
    norm = args["moe_normalize_expert_weights"]
    if norm is not None and norm < 0:
        raise ValueError(
            f"moe_normalize_expert_weights={norm} is the order of a norm: 1 has the weights of a "
            "token's experts add up to 1; leave it out for none."
        )


def _check_no_effect(args: Mapping[str, Any], kind: str) -> None:
    """Refuses keys that, beside the others, would do nothing."""
    without_effect = {
        "moe_capacity_factor": kind == "mb_dmoe" and "mb_dmoe drops no token; use mb_moe",
        "mlp_type": kind == "mb_moe" and "mb_moe has no gate; use mb_dmoe for glu",
        "moe_lbl_in_fp32": not args["moe_loss_weight"] and "moe_loss_weight is 0",
        "lbl_process_group": not args["moe_loss_weight"] and "moe_loss_weight is 0",
        "moe_zloss_in_fp32": not args["moe_zloss_weight"] and "moe_zloss_weight is 0",
        "shared_expert_hidden_size": not args["shared_expert"] and "shared_expert is false",
        "shared_expert_weighted_sum": not args["shared_expert"] and "shared_expert is false",
    }
    for key, reason in without_effect.items():
        if reason and args[key] != MEGABLOCKS_DEFAULTS[key]:
            raise ValueError(f"ffn_config.{key}={args[key]!r} has no effect: {reason}.")


def _check_parallel(args: Mapping[str, Any], kind: str) -> None:
    world_size, experts = args["moe_world_size"], args["moe_num_experts"]
    if not isinstance(world_size, int) or world_size < 1:
        raise ValueError(
            f"ffn_type: {kind} needs ffn_config.moe_world_size, the number of ranks that share the "
            f"experts, but got {world_size!r}. With 1, each rank has all of them."
        )
    if experts % world_size:
        raise ValueError(
            f"moe_num_experts={experts} must be a multiple of moe_world_size={world_size}, as each "
            "of these ranks has equally many."
        )
    if world_size > 1 and len(args["device_mesh"] or ()) > 1:
        raise ValueError(
            f"device_mesh={args['device_mesh']}: experts are shared by ranks (moe_world_size="
            f"{world_size}) only where one copy of the model is sharded over all ranks; leave out "
            "data_parallel_replicate_degree."
        )
    group = args["lbl_process_group"]
    is_size = isinstance(group, int) and not isinstance(group, bool) and group >= 1
    if group not in (None, "expert_group", "global_group") and not is_size:
        raise ValueError(
            f"lbl_process_group={group!r} is not one of expert_group, global_group, a number of "
            "neighbouring ranks, and nothing, for each rank by itself."
        )
    if group == "expert_group" and world_size == 1:
        raise ValueError(
            "lbl_process_group: expert_group has no effect with moe_world_size: 1, where the group "
            "is the rank itself. Leave it out, or use global_group."
        )


def config_moe_args(
    ffn_config: Mapping[str, Any], d_model: int, expansion_ratio: int | float, n_layers: int
) -> dict[str, Any]:
    """Returns the arguments of a mixture of experts: what its settings say, and the defaults.

    Args:
        ffn_config: The settings; ``ffn_type`` is torch_dmoe, mb_moe or mb_dmoe.
        d_model: Width of the model.
        expansion_ratio: Hidden width of an expert over ``d_model``, unless ``ffn_hidden_size`` is
            there.
        n_layers: The model's depth.

    Raises:
        KeyError: A setting that torch_dmoe needs is missing.
        ValueError: A setting is unknown, out of range or without effect.
    """
    kind = ffn_config["ffn_type"]
    given = {key: value for key, value in ffn_config.items() if key not in SHARED_KEYS}
    if kind == "torch_dmoe":
        _check_known(given, TORCH_KEYS, "torch dmoe")
        missing = sorted(TORCH_KEYS - given.keys())
        if missing:
            raise KeyError(f"ffn_type: torch_dmoe needs ffn_config.{', ffn_config.'.join(missing)}")
        args = given
    else:
        _check_known(given, {*MEGABLOCKS_DEFAULTS, *FIXED}, kind)
        for key, (value, reason) in FIXED.items():
            if key in given and given.pop(key) != value:
                raise ValueError(f"ffn_config.{key} has no effect in {kind}: {reason}.")
        args = MEGABLOCKS_DEFAULTS | given
        if args["mlp_impl"] not in ("sparse", "grouped"):
            raise ValueError(f"mlp_impl={args['mlp_impl']!r} is not one of sparse and grouped.")
        for key in ("moe_loss_weight", "moe_zloss_weight", "moe_capacity_factor"):
            if args[key] < 0:
                raise ValueError(f"{key}={args[key]} must not be negative.")
        _check_no_effect(args, kind)
        _check_parallel(args, kind)
    _check_numbers(args)
    hidden_size = resolve_ffn_hidden_size(
        d_model, expansion_ratio, ffn_config.get("ffn_hidden_size")
    )
    return {**args, "hidden_size": d_model, "ffn_hidden_size": hidden_size, "num_layers": n_layers}
