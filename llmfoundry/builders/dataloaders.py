"""Loaders and evaluators by the names that a recipe gives them."""

from collections.abc import Sequence
from typing import Any

from composer.core.data_spec import DataSpec
from composer.core.evaluator import Evaluator
from llmfoundry import registry
from llmfoundry.utils.registry_utils import construct_from_registry

__all__ = ["add_metrics_to_eval_loaders", "build_dataloader", "build_eval_loaders"]


def build_dataloader(
    cfg: dict[str, Any], tokenizer: Any, device_batch_size: int | float
) -> DataSpec:
    """Builds the loader that ``cfg["name"]`` names with the rest of ``cfg``."""
    settings = dict(cfg)
    name = settings.pop("name", None)
    if name is None:
        raise ValueError(
            f"A loader needs a name, one of {registry.dataloaders.names()}; got keys {sorted(cfg)}."
        )
    return construct_from_registry(
        name=name,
        registry=registry.dataloaders,
        partial_function=False,
        kwargs={**settings, "tokenizer": tokenizer, "device_batch_size": device_batch_size},
    )


def build_eval_loaders(
    eval_loader_config: dict[str, Any] | list[dict[str, Any]],
    tokenizer: Any,
    device_eval_batch_size: int | float,
) -> list[Evaluator]:
    """Builds an evaluator for each evaluation loader, labelled ``eval`` or ``eval/<label>``.

    Their metrics are still to be named; see :func:`add_metrics_to_eval_loaders`.
    """
    if isinstance(eval_loader_config, dict):
        labelled = [("eval", eval_loader_config)]
    elif isinstance(eval_loader_config, list):
        labelled = [(f"eval/{each['label']}", each) for each in eval_loader_config]
    else:
        raise ValueError(
            "eval_loader must be one loader or a list of loaders, got "
            f"{type(eval_loader_config).__name__}."
        )
    evaluators = []
    for label, settings in labelled:
        loader_config = {key: value for key, value in settings.items() if key != "label"}
        evaluators.append(
            Evaluator(
                label=label,
                dataloader=build_dataloader(loader_config, tokenizer, device_eval_batch_size),
                metric_names=[],
                device_eval_microbatch_size=device_eval_batch_size,
            )
        )
    return evaluators


def add_metrics_to_eval_loaders(
    evaluators: Sequence[Evaluator], metric_names: list[str]
) -> list[Evaluator]:
    """Names the metrics of evaluators that have none yet, and puts these first."""
    loaders, others = [], []
    for evaluator in evaluators:
        if evaluator.metric_names == []:
            evaluator.metric_names = metric_names
            loaders.append(evaluator)
        else:
            others.append(evaluator)
    return loaders + others
