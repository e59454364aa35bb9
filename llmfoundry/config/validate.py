"""Settings of a recipe that exclude each other."""

import warnings
from typing import Any

from llmfoundry.config.schema import TrainConfig

__all__ = ["validate_config"]


def validate_config(train_config: TrainConfig) -> None:
    """Refuses combinations that cannot work, before anything is built.

    Raises:
        ValueError: Two settings exclude each other; the text names both.
    """
    _check_labels(train_config.eval_loader)
    model = train_config.model
    if "name" not in model:
        raise ValueError("model needs a name.")
    if model["name"] == "hf_t5":
        for loader in [train_config.train_loader, *_eval_loaders(train_config)]:
            if loader.get("name") == "text":
                raise ValueError(
                    "Model type hf_t5 is not supported when using the `text` dataloader. Please "
                    "use the `finetuning` dataloader."
                )
    for loader in [train_config.train_loader, *_eval_loaders(train_config)]:
        _check_packing(model, loader.get("dataset") or {})
    has_adapters = model.get("peft_config") or model.get("pretrained_lora_id_or_path")
    for key in ("load_in_8bit", "quantization"):
        if model.get(key) and not has_adapters:
            raise ValueError(
                f"`{key}` is only supported for evaluation rather than training, unless adapters "
                "are trained: set peft_config."
            )
    _check_expert_parallelism(model, train_config.fsdp_config)
    if "fp8" in train_config.precision and model.get("fc_type") != "te":
        warnings.warn(
            "fp8 only matters to Transformer Engine layers, and this model has none (fc_type: te).",
            stacklevel=2,
        )


def _check_packing(model: dict[str, Any], dataset: dict[str, Any]) -> None:
    """Refuses packed rows for a model that would let their documents see each other."""
    ratio = dataset.get("packing_ratio")
    if not dataset.get("packing") and ratio in (None, 1):
        return
    attention = model.get("attn_config") or {}
    if model["name"] == "mpt_causal_lm" and not attention.get("attn_uses_sequence_id"):
        problem = (
            "the documents of a packed row see each other. Set "
            "model.attn_config.attn_uses_sequence_id: true"
        )
        if dataset.get("packing"):
            raise ValueError(f"With packing={dataset['packing']} {problem}, or remove packing.")
        warnings.warn(f"With packing_ratio={ratio} {problem}.", stacklevel=4)
    implementation = model.get("attn_implementation")
    if model.get("use_flash_attention_2"):
        implementation = "flash_attention_2"
    if model["name"] == "hf_causal_lm" and implementation not in (None, "eager", "sdpa"):
        raise ValueError(
            f"attn_implementation={implementation!r} cannot keep the documents of packed rows "
            "apart; use sdpa or eager, or remove packing."
        )


def _check_expert_parallelism(model: dict[str, Any], fsdp_config: dict[str, Any] | None) -> None:
    num_ranks = (model.get("ffn_config") or {}).get("moe_world_size") or 1
    if num_ranks == 1:
        return
    if fsdp_config is None:
        raise ValueError(
            f"ffn_config.moe_world_size={num_ranks} ranks share experts, which needs fsdp_config "
            "for the rest of the model. Add it, or set moe_world_size: 1."
        )
    if not fsdp_config.get("use_orig_params", True):
        raise ValueError(
            f"MoEs with expert parallelism (moe_world_size={num_ranks}) require "
            "`use_orig_params=True`."
        )
    if model.get("init_device") == "mixed":
        raise ValueError(
            f"model.init_device: mixed has weights on rank 0 only, which does not have all experts "
            f"with ffn_config.moe_world_size={num_ranks}. Use meta or cpu."
        )
    if fsdp_config.get("data_parallel_replicate_degree") not in (None, 1):
        raise ValueError(
            f"ffn_config.moe_world_size={num_ranks} does not go together with copies of the "
            "sharded model. Take fsdp_config.data_parallel_replicate_degree out."
        )


def _eval_loaders(train_config: TrainConfig) -> list[dict[str, Any]]:
    loaders = train_config.eval_loader
    if loaders is None:
        return []
    return loaders if isinstance(loaders, list) else [loaders]


def _check_labels(loaders: Any) -> None:
    if not isinstance(loaders, list):
        return
    labels = [loader.get("label") for loader in loaders]
    if any(label is None for label in labels):
        raise ValueError(
            "When specifying multiple evaluation datasets, each one must include the `label` "
            "attribute."
        )
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise ValueError(f"Each eval_loader needs a label of its own; {repeated} is used twice.")
