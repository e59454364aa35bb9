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
    if model.get("load_in_8bit", False):
        raise ValueError("`load_in_8bit` is only supported for evaluation rather than training.")
    if "fp8" in train_config.precision and model.get("fc_type") != "te":
        warnings.warn(
            "fp8 only matters to Transformer Engine layers, and this model has none (fc_type: te).",
            stacklevel=2,
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
