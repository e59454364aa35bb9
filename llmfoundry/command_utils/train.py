"""``llmfoundry train``: from a recipe to a trained model."""

import logging
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from omegaconf import DictConfig

from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.checkpoint.atomic import written_aside
from composer.devices.factory import get_device
from composer.trainer.trainer import Trainer
from composer.utils import dist, reproducibility
from composer.utils.file_helpers import is_uri
from composer.utils.file_names import format_name_with_dist
from llmfoundry.callbacks.hf_checkpointer import HuggingFaceCheckpointer
from llmfoundry.command_utils._assemble import TrainParts, assemble
from llmfoundry.config.dataset_uri import log_dataset_uri
from llmfoundry.config.loading import load_recipe
from llmfoundry.config.logged import log_config, recipe_text
from llmfoundry.config.parse import parse_train_config
from llmfoundry.config.schema import TRAIN_CONFIG_KEYS, TrainConfig
from llmfoundry.config.validate import validate_config
from llmfoundry.utils.registry_utils import import_file

__all__ = ["TRAIN_CONFIG_KEYS", "TrainConfig", "train", "train_from_yaml", "validate_config"]

log = logging.getLogger(__name__)

LOG_FORMAT = (
    "%(asctime)s: rank{rank}[%(process)d][%(threadName)s]: %(levelname)s: %(name)s: %(message)s"
)


def train_from_yaml(yaml_path: str, args_list: list[str] | None = None) -> Trainer:
    """Trains by the recipe in a file, with ``key=value`` overrides laid over it."""
    return train(load_recipe(yaml_path, args_list))


def train(cfg: DictConfig) -> Trainer:
    """Trains by a recipe and returns the trainer, which is still open.

    Raises:
        ConfigError: The recipe has faults; the text lists all of them, and nothing was built.
    """
    config = read_recipe(cfg)
    _set_up_logging(config.python_log_level)
    dist.initialize_dist(get_device(None), timeout=config.dist_timeout)
    dist.barrier()
    validate_config(config)
    _set_up_allocator(config)
    reproducibility.seed_all(config.seed)
    parts = assemble(config)
    exporters = [each for each in parts.callbacks if isinstance(each, HuggingFaceCheckpointer)]
    if config.only_hf_checkpoint and len(exporters) != 1:
        raise ValueError(
            "only_hf_checkpoint needs one hf_checkpointer among the callbacks, not "
            f"{len(exporters)}."
        )
    trainer = Trainer(**parts.trainer_arguments())
    # What a run resumes from is saved before what it only hands out.
    trainer.state.callbacks = sorted(trainer.state.callbacks, key=_saves_late)
    _keep_recipe(parts, trainer)
    if config.only_hf_checkpoint:
        exporters[0].save_now(trainer.state, trainer.logger)
        return trainer
    if config.only_composer_checkpoint:
        trainer.save_checkpoint_to_save_folder()
        return trainer
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if config.eval_first and trainer.state.timestamp.batch.value == 0:
        trainer.eval()
    trainer.fit()
    return trainer


def _saves_late(callback: Any) -> int:
    kinds = (CheckpointSaver, HuggingFaceCheckpointer)
    return next((n for n, kind in enumerate(kinds, 1) if isinstance(callback, kind)), 0)


def read_recipe(cfg: DictConfig | dict[str, Any]) -> TrainConfig:
    """Imports the files that a recipe names in ``code_paths``, then checks it."""
    for path in cfg.get("code_paths") or []:
        files = sorted(Path(path).glob("*.py")) if Path(path).is_dir() else [Path(path)]
        for file in files:
            import_file(file)
    return parse_train_config(cfg)


def _set_up_logging(level: str | None) -> None:
    if level is None:
        return
    logging.basicConfig(format=LOG_FORMAT.format(rank=dist.get_global_rank()), force=True)
    for package in ("llmfoundry", "streaming"):
        logging.getLogger(package).setLevel(level.upper())


def _set_up_allocator(config: TrainConfig) -> None:
    """Settings that CUDA reads when it starts, which is not before the first tensor on it."""
    parts = []
    if config.max_split_size_mb is not None:
        parts.append(f"max_split_size_mb:{config.max_split_size_mb}")
    if config.expandable_segments:
        parts.append("expandable_segments:True")
    if parts:
        # The first is today's name, the second the one that torch before 2.9 reads.
        os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = ",".join(parts)
    if config.cuda_load_lazy:
        os.environ["CUDA_MODULE_LOADING"] = "LAZY"


def _keep_recipe(parts: TrainParts, trainer: Trainer) -> None:
    """Prints and logs the resolved recipe, and puts it beside the checkpoints."""
    if parts.config.log_config:
        log_config(trainer.logger, parts.logged)
    log_dataset_uri(parts.logged)
    folder = parts.config.save_folder
    if folder is None or is_uri(folder) or dist.get_global_rank() != 0:
        return
    run_folder = Path(format_name_with_dist(folder, trainer.state.run_name))
    run_folder.mkdir(parents=True, exist_ok=True)
    text = recipe_text(_rerunnable(parts.config, trainer.state.run_name))
    with written_aside(run_folder / "config.yaml") as aside:
        Path(aside).write_text(text, encoding="utf-8")


def _rerunnable(config: TrainConfig, run_name: str) -> dict[str, Any]:
    """The resolved recipe, such that training by it again is training the same run."""
    filled_in = {"n_gpus", "device_train_batch_size", "device_train_grad_accum"}
    settings = {name: getattr(config, name) for name in TRAIN_CONFIG_KEYS - filled_in}
    return dict(sorted(settings.items())) | {"run_name": run_name}


class _CallableModule(ModuleType):
    """Lets ``llmfoundry.command_utils.train`` be what it is twice: this file and its function."""

    def __call__(self, cfg: DictConfig) -> Trainer:
        return train(cfg)


# Importing a file puts it into its package under its name, where programs expect the function.
sys.modules[__name__].__class__ = _CallableModule
