"""What MixUp and CutMix share: mixing inputs before the forward pass, targets or losses after."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from composer.algorithms.utils.autocast import autocast_of
from composer.algorithms.utils.targets import as_probabilities
from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils.misc import unwrap_model


class SampleMixing(Algorithm):
    """Mixes each sample with another of its micro-batch.

    The targets are mixed in the same proportion, as class probabilities, which the loss must take;
    or, for a loss that does not, the losses of both targets are.

    Args:
        interpolate_loss: Mixes the losses, not the targets.
        input_key: Where in the batch the input is: a key, an index, or a (getter, setter) pair.
        target_key: The same for the target.
    """

    _indices: torch.Tensor
    """The sample that each is mixed with."""
    _permuted_target: torch.Tensor

    def __init__(self, interpolate_loss: bool, input_key: Any, target_key: Any) -> None:
        self.interpolate_loss = interpolate_loss
        self.input_key = input_key
        self.target_key = target_key

    @abstractmethod
    def _mix_inputs(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Returns the mixed inputs; keeps who was mixed with whom, and how."""

    @property
    @abstractmethod
    def _share(self) -> float:
        """How much of a mixed sample is of the other one."""

    def _mix_targets(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # Of what the targets are now: another algorithm may have smoothed them.
        targets = as_probabilities(outputs, targets)
        return torch.lerp(targets, targets[self._indices], self._share)

    def match(self, event: Event, state: State) -> bool:
        """Matches before the forward pass, and before the loss or (mixing losses) after it."""
        mixing = Event.BEFORE_BACKWARD if self.interpolate_loss else Event.BEFORE_LOSS
        return event in (Event.BEFORE_FORWARD, mixing)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Mixes the inputs, the targets or the losses."""
        targets = self._tensor("target", state.batch_get_item(self.target_key))
        if event == Event.BEFORE_FORWARD:
            inputs = self._tensor("input", state.batch_get_item(self.input_key))
            state.batch_set_item(self.input_key, self._mix_inputs(inputs, targets))
        elif event == Event.BEFORE_LOSS:
            outputs = self._tensor("output of the model", state.outputs)
            state.batch_set_item(self.target_key, self._mix_targets(outputs, targets))
        else:
            model: Any = unwrap_model(state.model)
            state.batch_set_item(self.target_key, self._permuted_target)
            with autocast_of(state):
                other = model.loss(state.outputs, state.batch)
            state.batch_set_item(self.target_key, targets)
            state.loss = _mix_losses(state.loss, other, self._share)
        return None

    def _tensor(self, what: str, value: Any) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise NotImplementedError(
                f"{type(self).__name__} mixes tensors, and the {what} is {type(value).__name__}; "
                "point input_key and target_key at one tensor each, of a model that returns logits"
            )
        return value


def _mix_losses(loss: Any, other: Any, share: float) -> Any:
    if isinstance(loss, Mapping):
        return {name: _mix_losses(part, other[name], share) for name, part in loss.items()}
    if isinstance(loss, Sequence):
        return [_mix_losses(part, its, share) for part, its in zip(loss, other, strict=True)]
    return torch.lerp(loss, other, share)
