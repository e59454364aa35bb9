"""shim: the builders live in llmfoundry.builders."""

from llmfoundry.builders.components import (
    build_algorithm,
    build_callback,
    build_load_planner,
    build_logger,
    build_metric,
    build_save_planner,
    build_scheduler,
    build_tp_strategies,
)
from llmfoundry.builders.dataloaders import add_metrics_to_eval_loaders, build_eval_loaders
from llmfoundry.builders.evaluators import build_evaluators
from llmfoundry.builders.models import build_composer_model
from llmfoundry.builders.optimizers import _extract_param_groups, build_optimizer
from llmfoundry.builders.tokenizers import build_tokenizer

__all__ = [
    "_extract_param_groups",
    "add_metrics_to_eval_loaders",
    "build_algorithm",
    "build_callback",
    "build_composer_model",
    "build_eval_loaders",
    "build_evaluators",
    "build_load_planner",
    "build_logger",
    "build_metric",
    "build_optimizer",
    "build_save_planner",
    "build_scheduler",
    "build_tokenizer",
    "build_tp_strategies",
]
