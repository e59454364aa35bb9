"""Statistics of what goes into and comes out of every module."""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from composer.callbacks._now_and_then import NowAndThen
from composer.core.duration import Time
from composer.core.logger import Logger, tell
from composer.core.logger_destination import LoggerDestination
from composer.core.state import State
from composer.core.time_unit import TimeUnit
from composer.utils.misc import unwrap_model

_SAMPLE = 4096


class ActivationMonitor(NowAndThen):
    """Logs statistics of the activations of every module, in the first micro-batch of a due batch.

    The keys are ``activations/<statistic>/<module>_input.<i>`` and ``..._output.<i>``, where a
    module's output that is one tensor is taken apart along its first axis, and nested sequences add
    ``_<j>`` to the module's name. Statistics: ``l2_norm``, ``average``, ``kurtosis`` and ``max`` of
    the last axis, averaged over the others. All come to the host at once, after the forward pass; a
    compiled model runs that pass uncompiled, because hooks are not heard in compiled code.

    Args:
        interval: How often, in batches or epochs; a number counts batches.
        ignore_module_types: Leave out modules whose name contains one of these.
        only_log_wandb: Log only to destinations that can draw distributions (Weights & Biases), if
            there is one: there are very many keys.
        log_distributions: Also hand a sample of each activation to destinations that draw
            histograms.
    """

    def __init__(
        self,
        interval: int | str | Time[int] = "25ba",
        ignore_module_types: list[str] | None = None,
        only_log_wandb: bool = True,
        log_distributions: bool = False,
    ) -> None:
        super().__init__(interval)
        if self.interval.unit is TimeUnit.BATCH and self.interval.value < 10:
            warnings.warn(
                f"interval={interval!r} is short: looking into every module slows training down; "
                "10ba or more is recommended.",
                stacklevel=2,
            )
        self.ignore_module_types = ignore_module_types
        self.only_log_wandb = only_log_wandb
        self.log_distributions = log_distributions
        self.handles: list[Any] = []
        self.module_names: dict[torch.nn.Module, str] = {}
        self._metrics: dict[str, torch.Tensor] = {}
        self._samples: dict[str, torch.Tensor] = {}
        self._stance: Any = None

    def before_forward(self, state: State, logger: Logger) -> None:
        """Begins to listen to the modules, if it is time to."""
        if self.is_due(state):
            self.attach_forward_hooks(state, logger)

    def after_forward(self, state: State, logger: Logger) -> None:
        """Stops listening, and logs."""
        if not self.handles:
            return
        self.remove_forward_hooks()
        step = state.timestamp.batch.value
        names, values = list(self._metrics), list(self._metrics.values())
        if values:
            numbers = torch.stack([value.to(values[0].device) for value in values]).tolist()
            metrics = dict(zip(names, numbers, strict=True))
            for destination in self._destinations(logger):
                tell(destination, destination.log_metrics, metrics, step)
        for name, sample in self._samples.items():
            logger.log_distribution(f"activations/distribution/{name}", sample.cpu(), step)
        self._metrics, self._samples = {}, {}

    def close(self, state: State, logger: Logger) -> None:
        """Stops listening, where an error ended the forward pass."""
        self.remove_forward_hooks()

    def attach_forward_hooks(self, state: State, logger: Logger) -> None:
        """Listens to every module until the end of this forward pass."""
        if getattr(state.model, "_compiled_call_impl", None) is not None:
            self._stance = torch.compiler.set_stance("force_eager")
        model = unwrap_model(state.model)
        self.register_forward_hook(model, logger, state.timestamp.batch.value)

    def register_forward_hook(
        self, model: torch.nn.Module, logger: Logger, step: int | None
    ) -> None:
        """Listens to every module of a model."""
        self.create_module_names(model)
        self._metrics, self._samples = {}, {}
        hook = partial(self.forward_hook, logger, step)
        self.handles += [module.register_forward_hook(hook) for module in model.modules()]

    def remove_forward_hooks(self) -> None:
        """Stops listening."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        if self._stance is not None:
            torch.compiler.set_stance("default")
            self._stance = None

    def forward_hook(
        self, logger: Logger, step: int | None, module: torch.nn.Module, input: Any, output: Any
    ) -> None:
        """Takes the statistics of one module; they are logged after the forward pass."""
        name = self.module_names[module]
        if any(ignored in name for ignored in self.ignore_module_types or ()):
            return
        for side, values in (("input", input), ("output", output)):
            parts = values if _is_iterable(values) else [values]
            for index, value in enumerate(parts):
                self.recursively_add_metrics(self._metrics, name, f"_{side}.{index}", value)

    def recursively_add_metrics(
        self, metrics: dict[str, Any], name: str, suffix: str, values: Any
    ) -> None:
        """Adds the statistics of a tensor, or of each tensor in nested sequences."""
        if isinstance(values, Sequence) and not isinstance(values, str):
            for index, value in enumerate(values):
                self.recursively_add_metrics(metrics, f"{name}_{index}", suffix, value)
        elif isinstance(values, torch.Tensor) and values.is_floating_point() and values.numel():
            self.add_metrics(metrics, name, suffix, values)

    def add_metrics(
        self, metrics: dict[str, Any], name: str, suffix: str, value: torch.Tensor
    ) -> None:
        """Adds the statistics of one tensor."""
        # In fp16 squares overflow.
        value = value.detach().float()
        value = value.reshape(1) if value.ndim == 0 else value
        for statistic, number in (
            ("l2_norm", torch.linalg.vector_norm(value, dim=-1).mean()),
            ("average", value.mean()),
            ("kurtosis", compute_kurtosis(value).nanmean()),
            ("max", value.amax(dim=-1).mean()),
        ):
            metrics[f"activations/{statistic}/{name}{suffix}"] = number
        if self.log_distributions:
            flat = value.flatten()
            self._samples[f"{name}{suffix}"] = flat[:: max(1, flat.numel() // _SAMPLE)]

    def create_module_names(self, model: torch.nn.Module) -> None:
        """Notes the name of every module, as it is in the model without wrappers."""
        self.module_names = {module: name for name, module in model.named_modules()}

    def _destinations(self, logger: Logger) -> Sequence[Any]:
        drawing = [each for each in logger.destinations if _draws_distributions(each)]
        return drawing if self.only_log_wandb and drawing else logger.destinations


def compute_kurtosis(value: torch.Tensor) -> torch.Tensor:
    """Returns the fourth moment over the squared variance of the last axis (a Gaussian's is 3).

    It is NaN where all values are equal.
    """
    centred = value - value.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1)
    return centred.pow(4).mean(dim=-1) / variance.square()


def _is_iterable(values: Any) -> bool:
    if isinstance(values, torch.Tensor):
        return values.ndim > 0
    return isinstance(values, Sequence) and not isinstance(values, str)


def _draws_distributions(destination: Any) -> bool:
    return type(destination).log_distribution is not LoggerDestination.log_distribution
