"""``llmfoundry validate``: what a recipe would do, without doing it."""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch

from composer.core.data_spec import DataSpec
from composer.core.time import Time, TimeUnit
from composer.utils import dist
from llmfoundry.builders.components import (
    build_algorithm,
    build_callback,
    build_logger,
    build_scheduler,
)
from llmfoundry.builders.dataloaders import build_dataloader, build_eval_loaders
from llmfoundry.builders.models import build_composer_model
from llmfoundry.builders.optimizers import build_optimizer
from llmfoundry.builders.tokenizers import build_tokenizer
from llmfoundry.command_utils.train import read_recipe
from llmfoundry.config.loading import load_recipe
from llmfoundry.config.schema import TrainConfig
from llmfoundry.config.validate import validate_config

__all__ = ["RecipeSummary", "summarize", "validate_from_yaml"]

GIB = 2**30


@dataclass(frozen=True)
class RecipeSummary:
    """What a recipe comes to."""

    parameters: int
    trained_parameters: int
    state_bytes: int
    """Weights, gradients and optimizer moments of the whole model."""
    samples_per_step: int
    tokens_per_step: int
    samples_per_epoch: int | None
    steps: int | None

    def lines(self) -> list[str]:
        """The summary as lines of text."""
        whole = self.state_bytes / GIB
        rows = [
            f"parameters: {self.parameters:,} ({self.trained_parameters:,} trained)",
            f"memory for weights, gradients and optimizer: {whole:.2f} GiB, before sharding and "
            "without activations",
            f"a step: {self.samples_per_step:,} samples, up to {self.tokens_per_step:,} tokens",
        ]
        if self.samples_per_epoch is not None:
            rows.append(f"an epoch: {self.samples_per_epoch:,} samples")
        if self.steps is not None:
            tokens = self.steps * self.tokens_per_step
            rows.append(f"the run: {self.steps:,} steps, up to {tokens:,} tokens")
        return rows


def validate_from_yaml(yaml_path: str, args_list: list[str] | None = None) -> RecipeSummary:
    """Checks the recipe in a file and prints what it comes to."""
    summary = summarize(read_recipe(load_recipe(yaml_path, args_list)))
    print(f"{yaml_path} is valid on {dist.get_world_size()} process(es).")
    for line in summary.lines():
        print(f"  {line}")
    return summary


def summarize(config: TrainConfig) -> RecipeSummary:
    """Builds everything but the trainer, the model without memory, and adds it up."""
    validate_config(config)
    tokenizer = None
    if config.tokenizer:
        kwargs = dict(config.tokenizer.get("kwargs") or {})
        tokenizer = build_tokenizer(config.tokenizer["name"], kwargs)
    _build_plug_ins(config)
    assert config.device_train_batch_size is not None, "the batch-size transform fills it in"
    loader = build_dataloader(config.train_loader, tokenizer, config.device_train_batch_size)
    if config.eval_loader is not None:
        assert config.device_eval_batch_size is not None, "the batch-size transform fills it in"
        build_eval_loaders(config.eval_loader, tokenizer, config.device_eval_batch_size)
    model = _build_without_memory(config, tokenizer)
    samples = _samples_per_epoch(loader)
    return RecipeSummary(
        parameters=sum(each.numel() for each in model.parameters()),
        trained_parameters=sum(each.numel() for each in model.parameters() if each.requires_grad),
        state_bytes=_state_bytes(config, model),
        samples_per_step=config.global_train_batch_size,
        tokens_per_step=config.global_train_batch_size * config.max_seq_len,
        samples_per_epoch=samples,
        steps=_steps(config, samples),
    )


def _build_plug_ins(config: TrainConfig) -> None:
    """Constructors refuse what they cannot do; building is the only way to ask them."""
    scheduler = copy.deepcopy(config.scheduler)
    build_scheduler(scheduler.pop("name"), scheduler)
    for name, settings in (config.algorithms or {}).items():
        build_algorithm(name, copy.deepcopy(settings) or {})
    for name, settings in (config.callbacks or {}).items():
        build_callback(name, copy.deepcopy(settings) or {}, {})
    for name, settings in (config.loggers or {}).items():
        build_logger(name, copy.deepcopy(settings) or {})


def _build_without_memory(config: TrainConfig, tokenizer: Any) -> torch.nn.Module:
    settings = copy.deepcopy(config.model)
    name = settings.pop("name")
    dtype = settings.pop("master_weights_dtype", None)
    return build_composer_model(name, settings, tokenizer, torch.device("meta"), dtype)


def _state_bytes(config: TrainConfig, model: torch.nn.Module) -> int:
    """Counts the optimizer's tensors by taking a step, which costs nothing on the meta device."""
    settings = copy.deepcopy(config.optimizer)
    optimizer = build_optimizer(model, settings.pop("name"), settings)
    trained = [each for each in model.parameters() if each.requires_grad]
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    gradients = sum(each.numel() * each.element_size() for each in trained)
    for parameter in trained:
        parameter.grad = torch.empty_like(parameter)
    try:
        optimizer.step()
    except (NotImplementedError, RuntimeError):
        # An optimizer that looks at values cannot step without any; count two moments, as Adam has.
        return weights + 3 * gradients
    moments = sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
    return weights + gradients + moments


def _samples_per_epoch(loader: DataSpec) -> int | None:
    dataset = getattr(loader.dataloader, "dataset", None)
    size = getattr(dataset, "epoch_size", None) or getattr(dataset, "size", None)
    return size if isinstance(size, int) else loader.num_samples


def _steps(config: TrainConfig, samples_per_epoch: int | None) -> int | None:
    """Steps of the run, as far as the recipe tells."""
    duration = Time.from_input(config.max_duration, TimeUnit.EPOCH)
    if duration.unit == TimeUnit.BATCH:
        return int(duration.value)
    if duration.unit == TimeUnit.TOKEN:
        return math.ceil(duration.value / (config.global_train_batch_size * config.max_seq_len))
    if duration.unit == TimeUnit.SAMPLE:
        return math.ceil(duration.value / config.global_train_batch_size)
    if duration.unit == TimeUnit.EPOCH and samples_per_epoch is not None:
        drop_last = config.train_loader.get("drop_last", False)
        divide = math.floor if drop_last else math.ceil
        return int(duration.value) * divide(samples_per_epoch / config.global_train_batch_size)
    return None
