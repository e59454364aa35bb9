"""Registers models in MLflow, as versions that its ``transformers`` flavor loads."""

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmfoundry.config.problems import suggestion

__all__ = ["ModelRegistration"]

NAME_IN_RUN = "final_model_checkpoint"
TASK = "llm/v1/completions"
QUESTION = "What is Machine Learning?"
SET_HERE = (
    "artifact_path",
    "await_registration_for",
    "model_id",
    "name",
    "registered_model_name",
    "run_id",
    "transformers_model",
)
OF_MLFLOWS_MODEL = ("auth_policy", "resources")
"""Arguments that ``log_model`` hands on without naming them."""
OF_THE_LOGGED_MODEL = ("model_type", "params", "tags")
AWAIT_SECONDS = 3600


class ModelRegistration:
    """Logs a model to the run's MLflow logger, and makes it a version of a registered model.

    Args:
        name: The registered model's name, without the logger's prefix.
        config: Arguments of ``mlflow.transformers.log_model``.
    """

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self.name = name
        self.config = with_defaults(config)
        self._logger: Any = None

    def find_logger(self, destinations: Sequence[Any]) -> None:
        """Finds the logger that can register models.

        Raises:
            ValueError: There is none, or ``log_model`` does not take the arguments.
        """
        found = [each for each in destinations if hasattr(each, "log_model")]
        if not found:
            raise ValueError(
                f"mlflow_registered_model_name={self.name!r} needs an MLflow logger to register "
                "with. Add mlflow to the loggers, or remove the name."
            )
        self._logger = found[0]
        from mlflow.transformers import log_model

        known = set(inspect.signature(log_model).parameters)
        known = (known | set(OF_MLFLOWS_MODEL)) - set(SET_HERE) - {"kwargs"}
        for key in self.config.keys() - known:
            reason = "is set by hf_checkpointer" if key in SET_HERE else suggestion(key, known)
            raise ValueError(f"mlflow_logging_config.{key} cannot be given: {reason}")

    def log(self, model: str | dict[str, Any]) -> Any:
        """Logs and registers a model, and returns MLflow's description of it.

        Args:
            model: The path of its folder, or the model and its tokenizer by these names.
        """
        os.environ.setdefault("MLFLOW_HUGGINGFACE_MODEL_MAX_SHARD_SIZE", "1GB")
        import mlflow

        _resolve_pipeline()
        prefix, ids = self._logger.model_registry_prefix, self._logger.path_placeholders()
        # Made here, because a thread has no active run whose experiment MLflow would take.
        logged = mlflow.MlflowClient(self._logger.tracking_uri).create_logged_model(
            ids["mlflow_experiment_id"],
            name=NAME_IN_RUN,
            source_run_id=ids["mlflow_run_id"],
            **{key: self.config[key] for key in OF_THE_LOGGED_MODEL if key in self.config},
        )
        return self._logger.log_model(
            "transformers",
            transformers_model=model,
            model_id=logged.model_id,
            registered_model_name=f"{prefix}.{self.name}" if prefix else self.name,
            run_id=ids["mlflow_run_id"],
            await_registration_for=AWAIT_SECONDS,
            **self.config,
        )


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments with what a language model needs and nobody gave."""
    config = dict(config)
    config["metadata"] = dict(config.get("metadata") or {})
    config.setdefault("task", config["metadata"].get("task", TASK))
    example: dict[str, Any] = {"prompt": np.array([QUESTION])}
    if config["task"].endswith("chat"):
        example = {"messages": [{"role": "user", "content": QUESTION}]}
    config.setdefault("input_example", example)
    return config


def _resolve_pipeline() -> None:
    """Has transformers list the class that generates text itself, which it may do by its path.

    MLflow 3.17 asks the entry for the class's name; transformers 5.24 takes both.
    """
    from transformers.pipelines import PIPELINE_REGISTRY
    from transformers.pipelines.text_generation import TextGenerationPipeline

    PIPELINE_REGISTRY.supported_tasks["text-generation"]["impl"] = TextGenerationPipeline
