"""Callbacks, loggers, algorithms, schedulers and metrics by the names that a recipe gives them."""

import copy
import warnings
from typing import Any

from composer.core.algorithm import Algorithm
from composer.core.callback import Callback
from composer.core.logger_destination import LoggerDestination
from composer.optim.scheduler import ComposerScheduler
from llmfoundry import registry
from llmfoundry.utils.registry_utils import construct_from_registry
from llmfoundry.utils.warnings import ExperimentalWarning

__all__ = [
    "build_algorithm",
    "build_callback",
    "build_load_planner",
    "build_logger",
    "build_metric",
    "build_save_planner",
    "build_scheduler",
    "build_tp_strategies",
]


def build_callback(
    name: str, kwargs: dict[str, Any] | None = None, train_config: Any = None
) -> Callback:
    """Builds a callback; one that asks for the recipe gets its own copy of ``train_config``."""
    arguments = dict(kwargs or {})
    holder = registry.callbacks
    if name in registry.callbacks_with_config:
        if "train_config" in arguments:
            raise ValueError(
                f"`train_config` is a reserved keyword: {name} is given the whole recipe under it. "
                "Remove it from the callback's settings."
            )
        arguments["train_config"] = copy.deepcopy(train_config)
        holder = registry.callbacks_with_config
    return construct_from_registry(
        name=name, registry=holder, pre_validation_function=Callback, kwargs=arguments
    )


def build_logger(name: str, kwargs: dict[str, Any] | None = None) -> LoggerDestination:
    """Builds a logger."""
    return construct_from_registry(
        name=name,
        registry=registry.loggers,
        pre_validation_function=LoggerDestination,
        kwargs=kwargs,
    )


def build_algorithm(name: str, kwargs: dict[str, Any] | None = None) -> Algorithm:
    """Builds an algorithm."""
    return construct_from_registry(
        name=name, registry=registry.algorithms, pre_validation_function=Algorithm, kwargs=kwargs
    )


def build_scheduler(name: str, scheduler_config: dict[str, Any] | None = None) -> ComposerScheduler:
    """Builds a learning-rate schedule."""
    return construct_from_registry(
        name=name,
        registry=registry.schedulers,
        pre_validation_function=ComposerScheduler,
        kwargs=scheduler_config,
    )


def build_metric(name: str, kwargs: dict[str, Any] | None = None) -> Any:
    """Builds a metric."""
    from torchmetrics import Metric

    return construct_from_registry(
        name=name, registry=registry.metrics, pre_validation_function=Metric, kwargs=kwargs
    )


def build_load_planner(name: str, **kwargs: Any) -> Any:
    """Builds a planner that reads sharded checkpoints."""
    return construct_from_registry(name=name, registry=registry.load_planners, kwargs=kwargs)


def build_save_planner(name: str, **kwargs: Any) -> Any:
    """Builds a planner that writes sharded checkpoints."""
    return construct_from_registry(name=name, registry=registry.save_planners, kwargs=kwargs)


def build_tp_strategies(name: str, model: Any) -> dict[str, Any]:
    """Builds the tensor-parallel plan of a model: module name -> how it is split."""
    warnings.warn(ExperimentalWarning("Tensor Parallelism"), stacklevel=2)
    return construct_from_registry(
        name=name, registry=registry.tp_strategies, partial_function=False, kwargs={"model": model}
    )
