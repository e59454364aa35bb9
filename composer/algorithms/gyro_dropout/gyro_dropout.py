"""Gyro dropout: few masks, each for a while, so that subnetworks are learned well (MLSys 2022)."""

import warnings
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, TypeVar

import torch

from composer.algorithms.utils.surgery import (
    ModelSurgery,
    OnNoMatch,
    computes_as,
    report_no_match,
)
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time_unit import TimeUnit
from composer.utils.misc import unwrap_model
from composer.utils.module_surgery import replace_module_classes

M = TypeVar("M", bound=torch.nn.Module)


class GyroDropoutLayer(torch.nn.Module):
    """Dropout with a few masks out of a set that is drawn once.

    A mask leaves out features: those of the last dimension, alike at all others of a sample.

    Args:
        iters_per_epoch: How many forwards an epoch has.
        max_epoch: How many epochs there are.
        p: How many of the features each mask leaves out.
        sigma: How many masks the set has.
        tau: How many of them are in use at a time, each for an equal part of the batch.
        seed: From what the masks are drawn; by default it is drawn itself.
    """

    def __init__(
        self,
        iters_per_epoch: int,
        max_epoch: float,
        p: float,
        sigma: int,
        tau: int,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        _check_settings(p, sigma, tau)
        _keep_out_of_graphs()
        self.iter_num = max(1, int(iters_per_epoch * max_epoch / sigma)) * tau
        self.p = p
        self.sigma = sigma
        self.tau = tau
        self.seed = int(torch.randint(2**31, ())) if seed is None else seed
        self.steps = 0
        """How many forwards it has trained in; with the seed, all of its state."""
        self._set: torch.Tensor | None = None
        self._chosen: tuple[int, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Leaves out features in training, and scales the others up."""
        if not self.training:
            return x
        next_masks: Any = self._next_masks
        return x * (next_masks(x) / (1 - self.p))

    def _next_masks(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a mask for each sample, and counts the forward."""
        turn = self.steps // self.iter_num
        self.steps += 1
        masks = self._masks_of(turn, x)
        rows = torch.arange(x.shape[0], device=x.device) * self.tau // x.shape[0]
        shape = (x.shape[0], *(1,) * (x.ndim - 2), x.shape[-1])
        return masks[rows].view(shape).to(x.dtype)

    def _masks_of(self, turn: int, x: torch.Tensor) -> torch.Tensor:
        known = self._set is not None and self._set.shape[1] == x.shape[-1]
        if not known or self._chosen is None or self._chosen[0] != turn:
            # Drawn on the CPU, so that a run goes on with the same masks on any device.
            generator = torch.Generator().manual_seed(self.seed)
            if not known:
                drawn = torch.rand(self.sigma, x.shape[-1], generator=generator)
                self._set = drawn >= self.p
            assert self._set is not None
            generator.manual_seed(self.seed + 1 + turn)
            chosen = torch.randperm(self.sigma, generator=generator)
            self._chosen = turn, self._set[chosen[: self.tau]].to(x.device)
        return self._chosen[1]


@cache
def _keep_out_of_graphs() -> None:
    """Has the count left out of compiled graphs, where every forward would be compiled anew.

    Not by a decorator: it imports the compiler, and importing this module should not.
    """
    counted: Any = torch.compiler.disable(GyroDropoutLayer._next_masks)
    GyroDropoutLayer._next_masks = counted


def _check_settings(p: float, sigma: int, tau: int) -> None:
    if not 0 <= p < 1:
        raise ValueError(f"p={p} is not a rate of dropout: it must be in [0, 1).")
    if not 1 <= tau <= sigma:
        raise ValueError(
            f"tau={tau} masks out of sigma={sigma} cannot be in use: 1 <= tau <= sigma must hold."
        )


def from_Dropout(
    iters_per_epoch: int,
    epoch: float,
    p: float,
    sigma: int,
    tau: int,
    layer: torch.nn.Module,
    module_index: int,
    seed: int | None = None,
) -> GyroDropoutLayer | None:
    """Makes the layer that stands for a Dropout; None for one with a forward of its own."""
    if not (isinstance(layer, GyroDropoutLayer) or computes_as(layer, torch.nn.Dropout)):
        return None
    own_seed = None if seed is None else seed + module_index * 2**20
    gyro = GyroDropoutLayer(iters_per_epoch, epoch, p, sigma, tau, own_seed)
    return gyro.train(layer.training)


def apply_gyro_dropout(
    model: M,
    iters_per_epoch: int,
    max_epoch: float,
    p: float,
    sigma: int,
    tau: int,
    seed: int | None = None,
    on_no_match: OnNoMatch = "raise",
) -> M:
    """Replaces every Dropout by a `GyroDropoutLayer`; changes and returns the model.

    Attention of transformers only reads the rate of its Dropout, and goes on to apply torch's.

    Args:
        model: The model.
        iters_per_epoch: How many forwards an epoch has.
        max_epoch: How many epochs there are.
        p: How many of the features each mask leaves out.
        sigma: How many masks there are.
        tau: How many of them are in use at a time.
        seed: From what masks are drawn; layers draw from numbers that follow each other.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no Dropout.

    Raises:
        NoMatchError: If there is no Dropout.
        ValueError: If the rate or the numbers are not possible.
    """
    _check_settings(p, sigma, tau)

    policy = partial(from_Dropout, iters_per_epoch, max_epoch, p, sigma, tau, seed=seed)
    if not replace_module_classes(model, {(torch.nn.Dropout, GyroDropoutLayer): policy}):
        report_no_match("GyroDropout", "no Dropout", on_no_match)
    return model


class GyroDropout(ModelSurgery):
    """Replaces Dropout by few masks that are in use for a while, so that each learns well.

    Args:
        p: How many of the features each mask leaves out.
        sigma: How many masks there are.
        tau: How many of them are in use at a time.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no Dropout.

    Raises:
        ValueError: If the rate or the numbers are not possible.
    """

    def __init__(
        self, p: float = 0.5, sigma: int = 256, tau: int = 16, on_no_match: OnNoMatch = "raise"
    ) -> None:
        super().__init__(on_no_match)
        _check_settings(p, sigma, tau)
        self.p = p
        self.sigma = sigma
        self.tau = tau
        self._layers: list[GyroDropoutLayer] = []
        self._steps_to_load: list[int] | None = None

    def match(self, event: Event, state: State) -> bool:
        """Matches the first start of training, when its length is known."""
        return event == Event.FIT_START and not self._layers

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Changes the layers of the model."""
        iters_per_epoch, max_epoch = _length(state)
        model = unwrap_model(state.model)
        apply_gyro_dropout(
            model,
            iters_per_epoch,
            max_epoch,
            self.p,
            self.sigma,
            self.tau,
            state.rank_zero_seed,
            self.on_no_match,
        )
        self._layers = list(_gyro_layers(model))
        if self._steps_to_load is not None:
            for layer, steps in zip(self._layers, self._steps_to_load, strict=True):
                layer.steps = steps
        return None

    def state_dict(self) -> dict[str, Any]:
        """Returns how it is made again, and how far each layer is."""
        return {**super().state_dict(), "steps": [layer.steps for layer in self._layers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keeps how far each layer is, until training starts."""
        self._steps_to_load = state.get("steps") or None
        if "steps" not in state:
            warnings.warn(
                "The checkpoint does not say how far GyroDropout was; its masks start anew.",
                stacklevel=2,
            )


def _gyro_layers(model: torch.nn.Module) -> Iterator[GyroDropoutLayer]:
    return (module for module in model.modules() if isinstance(module, GyroDropoutLayer))


def _length(state: State) -> tuple[int, float]:
    """Returns how many batches an epoch has, and how many epochs there are."""
    length, duration = state.dataloader_len, state.max_duration
    if length is None or duration is None or duration.unit not in (TimeUnit.EPOCH, TimeUnit.BATCH):
        raise ValueError(
            "GyroDropout has to know the number of batches: give a max_duration in epochs or "
            f"batches, not {duration}, and a dataloader that has a length."
        )
    is_epochs = duration.unit == TimeUnit.EPOCH
    return int(length), duration.value if is_epochs else duration.value / int(length)
