"""Everything that a training recipe names, built in the order in which recipes expect it."""

import copy
import dataclasses
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from composer.core.algorithm import Algorithm
from composer.core.callback import Callback
from composer.core.data_spec import DataSpec
from composer.core.evaluator import Evaluator
from composer.core.logger_destination import LoggerDestination
from composer.models.base import ComposerModel
from composer.optim.schedules import ComposerScheduler
from composer.utils import dist, reproducibility
from llmfoundry.builders.components import (
    build_algorithm,
    build_callback,
    build_logger,
    build_scheduler,
    build_tp_strategies,
)
from llmfoundry.builders.dataloaders import add_metrics_to_eval_loaders, build_dataloader
from llmfoundry.builders.evaluators import build_evaluators
from llmfoundry.builders.models import build_composer_model
from llmfoundry.builders.optimizers import build_optimizer
from llmfoundry.builders.tokenizers import build_tokenizer
from llmfoundry.config.batch_size import copies_of_a_batch
from llmfoundry.config.init_device import process_init_device
from llmfoundry.config.schema import TrainConfig
from llmfoundry.utils.exceptions import (
    BaseContextualError,
    EvalDataLoaderLocation,
    TrainDataLoaderLocation,
)

__all__ = ["TrainParts", "assemble", "logged_metadata"]


@dataclass(frozen=True)
class TrainParts:
    """What the trainer is given."""

    config: TrainConfig
    logged: dict[str, Any]
    """The recipe as it is logged."""
    model: ComposerModel
    optimizer: Any
    scheduler: ComposerScheduler
    train_loader: DataSpec
    evaluators: list[Evaluator]
    callbacks: list[Callback]
    loggers: list[LoggerDestination]
    algorithms: list[Algorithm]
    parallelism: dict[str, Any] | None

    def trainer_arguments(self) -> dict[str, Any]:
        """The keyword arguments of :class:`composer.Trainer`."""
        config = self.config
        passed_on = {name: getattr(config, name) for name in PASSED_ON}
        fsdp = (self.parallelism or {}).get("fsdp", {}) if dist.get_world_size() > 1 else {}
        sharded = fsdp.get("state_dict_type") == "sharded"
        latest = "latest-sharded-rank{rank}" if sharded else "latest-rank{rank}.pt"
        return passed_on | {
            "run_name": config.run_name or os.environ.get("RUN_NAME"),
            "model": self.model,
            "train_dataloader": self.train_loader,
            "eval_dataloader": self.evaluators,
            "optimizers": self.optimizer,
            "schedulers": self.scheduler,
            "loggers": self.loggers,
            "callbacks": self.callbacks,
            "algorithms": self.algorithms,
            "parallelism_config": self.parallelism,
            "save_filename": config.save_filename or "ep{epoch}-ba{batch}-rank{rank}.pt",
            "save_latest_filename": config.save_latest_filename or latest,
        }


PASSED_ON = (
    "seed",
    "train_subset_num_batches",
    "max_duration",
    "eval_interval",
    "eval_subset_num_batches",
    "progress_bar",
    "log_to_console",
    "console_log_interval",
    "precision",
    "device_train_microbatch_size",
    "save_folder",
    "save_interval",
    "save_num_checkpoints_to_keep",
    "save_overwrite",
    "save_weights_only",
    "save_async",
    "load_path",
    "load_weights_only",
    "load_strict_model_weights",
    "load_ignore_keys",
    "save_ignore_keys",
    "autoresume",
    "python_log_level",
    "dist_timeout",
    "compile_config",
    "deepspeed_config",
    "spin_dataloaders",
    "accumulate_train_batch_on_tokens",
)
"""Settings that are arguments of the trainer under the same name."""


def assemble(config: TrainConfig) -> TrainParts:
    """Builds what a recipe names: tokenizer, plug-ins, loaders, model, optimizer."""
    logged = logged_metadata(config)
    model_cfg, parallelism = copy.deepcopy(config.model), _parallelism(config)
    sharding = parallelism.get("fsdp") if dist.get_world_size() > 1 else None
    init_context = process_init_device(model_cfg, sharding, parallelism.get("tp"))
    copies = copies_of_a_batch({"tp_config": config.tp_config, "cp_config": config.cp_config})
    tokenizer = _tokenizer(config)
    scheduler = build_scheduler(*_name_and_settings(config.scheduler))
    loggers = [build_logger(name, settings) for name, settings in _entries(config.loggers).items()]
    callbacks = [
        build_callback(name, settings, logged)
        for name, settings in _entries(config.callbacks).items()
    ]
    algorithms = [
        build_algorithm(name, settings) for name, settings in _entries(config.algorithms).items()
    ]
    with _located(TrainDataLoaderLocation):
        assert config.device_train_batch_size is not None, "the batch-size transform fills it in"
        train_loader = build_dataloader(
            _replicated(config.train_loader, copies), tokenizer, config.device_train_batch_size
        )
    with _located(EvalDataLoaderLocation):
        evaluators = _evaluators(config, tokenizer, copies)
    # What was drawn before must not matter: on meta, the trainer draws from the seed alone.
    reproducibility.seed_all(config.seed)
    model = _model(model_cfg, tokenizer, init_context)
    logged |= _parameter_counts(model)
    if "tp" in parallelism:
        parallelism["tp"]["layer_plan"] = build_tp_strategies(
            parallelism["tp"].pop("strategy"), model
        )
    return TrainParts(
        config=config,
        logged=logged,
        model=model,
        optimizer=build_optimizer(model, *_name_and_settings(config.optimizer)),
        scheduler=scheduler,
        train_loader=train_loader,
        evaluators=add_metrics_to_eval_loaders(evaluators, list(model.get_metrics(is_train=False))),
        callbacks=callbacks,
        loggers=loggers,
        algorithms=algorithms,
        parallelism=parallelism or None,
    )


def _parallelism(config: TrainConfig) -> dict[str, Any]:
    """The parallel settings that have a meaning with this many ranks."""
    asked = {"fsdp": config.fsdp_config, "tp": config.tp_config, "cp": config.cp_config}
    asked = {key: copy.deepcopy(value) for key, value in asked.items() if value is not None}
    if asked and dist.get_world_size() == 1:
        warnings.warn(
            f"{' and '.join(f'{key}_config' for key in asked)} has no meaning with one process, "
            "but for activation checkpointing, and is left out. Reverting to DDP.",
            stacklevel=3,
        )
        asked = {key: value for key, value in asked.items() if key == "fsdp"}
    return asked


def _replicated(loader: dict[str, Any], copies: int) -> dict[str, Any]:
    """A loader's settings, such that ranks that share a batch get the same samples."""
    dataset = loader.get("dataset")
    if copies == 1 or not isinstance(dataset, dict):
        return loader
    return {**loader, "dataset": {"replication": copies, **dataset}}


def _tokenizer(config: TrainConfig) -> Any:
    if not config.tokenizer:
        return None
    return build_tokenizer(config.tokenizer["name"], dict(config.tokenizer.get("kwargs") or {}))


def _name_and_settings(section: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    settings = copy.deepcopy(section)
    return settings.pop("name"), settings


def _entries(section: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """A section of names, with the settings of each as a fresh mapping."""
    return {name: copy.deepcopy(settings) or {} for name, settings in (section or {}).items()}


def _evaluators(config: TrainConfig, tokenizer: Any, copies: int) -> list[Evaluator]:
    assert config.device_eval_batch_size is not None, "the batch-size transform fills it in"
    loader: Any = copy.deepcopy(config.eval_loader)
    if isinstance(loader, list):
        loader = [_replicated(each, copies) for each in loader]
    elif loader is not None:
        loader = _replicated(loader, copies)
    return build_evaluators(
        loader,
        config.icl_tasks,
        config.eval_gauntlet,
        tokenizer=tokenizer,
        device_eval_batch_size=config.device_eval_batch_size,
        icl_seq_len=config.icl_seq_len or config.max_seq_len,
        icl_subset_num_batches=config.icl_subset_num_batches,
    )[0]


def _model(model_cfg: dict[str, Any], tokenizer: Any, init_context: Any) -> ComposerModel:
    name = model_cfg.pop("name")
    master_weights_dtype = model_cfg.pop("master_weights_dtype", None)
    return build_composer_model(
        name=name,
        cfg=model_cfg,
        tokenizer=tokenizer,
        init_context=init_context,
        master_weights_dtype=master_weights_dtype,
    )


def _parameter_counts(model: ComposerModel) -> dict[str, int]:
    total = sum(each.numel() for each in model.parameters())
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    return {
        "n_params": getattr(model, "n_total_params", total),
        "n_active_params": getattr(model, "n_active_params", total),
        "n_trainable_params": trained,
    }


def logged_metadata(config: TrainConfig) -> dict[str, Any]:
    """The recipe as it is logged: with every default, and ``metadata`` beside the rest."""
    logged = dataclasses.asdict(config)
    if not config.flatten_metadata or not config.metadata:
        return logged
    present = sorted(logged.keys() & config.metadata.keys())
    if present:
        raise ValueError(
            f"Keys {present} of metadata are already present in the config. Please rename them in "
            "metadata, or set flatten_metadata: false."
        )
    return {key: value for key, value in logged.items() if key != "metadata"} | config.metadata


@contextmanager
def _located(location: Any) -> Iterator[None]:
    """Says of an error which loader it came from."""
    try:
        yield
    except BaseContextualError as error:
        error.location = location
        raise
