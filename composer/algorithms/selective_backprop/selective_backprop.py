"""Selective backprop: trains on the samples that are hard."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from composer.algorithms.utils.autocast import autocast_of
from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.protocols import RunOrder
from composer.core.state import State
from composer.devices.device import _map_batch
from composer.models.base import ComposerModel
from composer.utils.batch_helpers import batch_get, batch_set
from composer.utils.misc import unwrap_model

_INTERPOLATIONS = {3: "linear", 4: "bilinear", 5: "trilinear"}


def should_selective_backprop(
    current_duration: float,
    batch_idx: int,
    start: float = 0.5,
    end: float = 0.9,
    interrupt: int = 2,
) -> bool:
    """Tells whether samples are to be selected in a batch.

    Args:
        current_duration: How much of training is over, 0 to 1.
        batch_idx: The batch's index in its epoch.
        start: From where in training on samples are selected.
        end: Up to where.
        interrupt: Each batch of this number is trained on whole; none if it is 0.
    """
    is_interrupted = interrupt > 0 and (batch_idx + 1) % interrupt == 0
    return start <= current_duration < end and not is_interrupted


def select_using_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    model: Callable[[Any], Any],
    loss_fun: Callable[..., torch.Tensor],
    keep: float = 0.5,
    scale_factor: float = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Selects samples, the more likely the larger their loss (Jiang et al., 2019).

    Args:
        input: The inputs, samples along axis 0.
        target: The targets, samples along axis 0.
        model: Maps the inputs to outputs.
        loss_fun: Takes outputs, targets and ``reduction="none"``.
        keep: Fraction of the samples to select.
        scale_factor: Makes the inputs smaller for the pass that finds the losses: the last one,
            two or three axes of inputs with three, four or five.

    Returns:
        The inputs and targets that were selected.

    Raises:
        ValueError: If scale_factor is above 1, or below 1 for inputs of other shapes.
        TypeError: If ``loss_fun`` is no function with a ``reduction``.
    """
    _check_loss(loss_fun)
    with torch.no_grad():
        losses = loss_fun(model(_smaller(input, scale_factor)), target, reduction="none")
    selected = _select(losses.flatten(1).mean(1) if losses.ndim > 1 else losses, keep)
    return input[selected], target[selected]


def _check_loss(loss_fun: Any) -> None:
    if not callable(loss_fun):
        raise TypeError(f"The loss must be a function, not {type(loss_fun).__name__}")
    parameters = inspect.signature(loss_fun).parameters.values()
    if not any(p.name == "reduction" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise TypeError(
            f"{getattr(loss_fun, '__qualname__', loss_fun)} takes no `reduction`, and a loss for "
            "each sample is needed; give it that argument, with the value 'none'"
        )


def _check_scale(scale_factor: float) -> None:
    if not 0 < scale_factor <= 1:
        raise ValueError(f"scale_factor={scale_factor} must be above 0, and at most 1")


def _smaller(input: torch.Tensor, scale_factor: float) -> torch.Tensor:
    _check_scale(scale_factor)
    if scale_factor == 1:
        return input
    mode = _INTERPOLATIONS.get(input.ndim)
    if mode is None:
        raise ValueError(
            f"scale_factor={scale_factor} needs inputs with 3, 4 or 5 axes, not of shape "
            f"{tuple(input.shape)}; set it to 1"
        )
    return F.interpolate(
        input,
        scale_factor=scale_factor,
        mode=mode,
        align_corners=False,
        recompute_scale_factor=False,
    )


def _select(losses: torch.Tensor, keep: float) -> torch.Tensor:
    """Draws indices of samples, by the rank of their losses."""
    size = len(losses)
    # Ranks are drawn on the host, which then need not wait for the losses.
    chances = ((np.arange(size) + 0.5) / size) ** (1 / keep - 1)
    ranks = np.random.choice(
        size, max(int(keep * size), 1), replace=False, p=chances / chances.sum()
    )
    return losses.argsort()[torch.from_numpy(ranks).to(losses.device, non_blocking=True)]


class SelectiveBackprop(Algorithm):
    """Trains on the samples with large losses only (Jiang et al., 2019).

    A pass without gradients finds the losses; that of the model must take ``reduction="none"``.

    Args:
        start: From where in training on samples are selected, as a fraction of it.
        end: Up to where.
        keep: Fraction of the samples to select.
        scale_factor: Makes images smaller for the pass that finds the losses.
        interrupt: Each batch of this number is trained on whole; none if it is 0.
        input_key: Where in the batch the input is: a key, an index, or a (getter, setter) pair.
        target_key: The same for the target.

    Raises:
        ValueError: If a setting is out of range.
    """

    run_order: ClassVar[RunOrder] = "first"

    def __init__(
        self,
        start: float = 0.5,
        end: float = 0.9,
        keep: float = 0.5,
        scale_factor: float = 1.0,
        interrupt: int = 2,
        input_key: Any = 0,
        target_key: Any = 1,
    ) -> None:
        if not 0 < keep <= 1:
            raise ValueError(f"keep={keep} must be a fraction of the samples, above 0")
        if not 0 <= start <= end <= 1:
            raise ValueError(
                f"start={start} and end={end} must be fractions of training, in this order"
            )
        _check_scale(scale_factor)
        self.start = start
        self.end = end
        self.keep = keep
        self.scale_factor = scale_factor
        self.interrupt = interrupt
        self.input_key = input_key
        self.target_key = target_key

    def match(self, event: Event, state: State) -> bool:
        """Matches at the start, to check the model, and when a batch has been loaded."""
        if event == Event.INIT:
            return True
        if event != Event.AFTER_DATALOADER or self.keep == 1:
            return False
        elapsed = state.get_elapsed_duration()
        assert elapsed is not None, "training has a duration"
        return should_selective_backprop(
            float(elapsed),
            int(state.timestamp.batch_in_epoch),
            self.start,
            self.end,
            self.interrupt,
        )

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> int | None:
        """Keeps the samples of the batch that are selected.

        Raises:
            RuntimeError: If the model is no ComposerModel.
            TypeError: If its loss takes no ``reduction``.
        """
        if event == Event.INIT:
            if not isinstance(state.model, ComposerModel):
                raise RuntimeError(
                    "SelectiveBackprop needs a ComposerModel, which knows its loss, not "
                    f"{type(state.model).__name__}"
                )
            _check_loss(state.model.loss)
            return None
        batch = state.device.batch_to_device(state.batch)
        size = len(batch_get(batch, self.input_key))
        microbatch_size = int(state.device_train_microbatch_size or size)
        with torch.no_grad(), autocast_of(state):
            losses = [
                self._losses(state, _rows(batch, size, slice(start, start + microbatch_size)))
                for start in range(0, size, microbatch_size)
            ]
        # Whatever else the batch holds of each sample stays beside it.
        state.batch = _rows(batch, size, _select(torch.cat(losses), self.keep))
        return None

    def _losses(self, state: State, batch: Any) -> torch.Tensor:
        """Returns the loss of each sample; ``batch`` is its to change."""
        model: Any = unwrap_model(state.model)
        inputs, target = batch_get(batch, self.input_key), batch_get(batch, self.target_key)
        batch = batch_set(batch, self.input_key, _smaller(inputs, self.scale_factor))
        batch = batch_set(batch, self.target_key, None)
        outputs = state.model(batch)
        losses = model.loss(outputs, batch_set(batch, self.target_key, target), reduction="none")
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


def _rows(batch: Any, size: int, rows: Any) -> Any:
    """Returns a batch of some samples of another: of all tensors that have one row a sample."""

    def pick(value: Any) -> Any:
        has_rows = isinstance(value, torch.Tensor) and value.ndim and len(value) == size
        return value[rows] if has_rows else value

    return _map_batch(batch, pick)
