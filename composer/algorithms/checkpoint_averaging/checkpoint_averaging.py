"""CheckpointAveraging: evaluates and saves the mean of the last checkpoints."""

from collections import deque
from typing import Any

import torch

from composer.algorithms.ema.averaged_weights import EMAParameters
from composer.algorithms.ema.evaluated_average import EvaluatedAverage
from composer.core.duration import Time
from composer.utils.gradients import as_sharded

__all__ = ["CheckpointAveraging"]


class CheckpointAveraging(EvaluatedAverage):
    """Evaluates and saves the mean of the last ``window`` checkpoints (PMA, arXiv 2505.12082).

    At a constant learning rate that shows what annealing would give, while training goes on
    unchanged: the mean stands in the model's place during evaluation and in checkpoints only. The
    ``window`` copies are kept in the host's memory, those of a sharded model beside its shards, and
    in checkpoints.

    Args:
        interval: How far apart the checkpoints are, in batches or epochs.
        window: How many of them are averaged.
        start: When to begin, for instance with the end of warm-up; in any unit.

    Raises:
        ValueError: If ``interval`` is in another unit, or ``window`` is below 2.
    """

    def __init__(
        self,
        interval: str | Time[Any] = "1000ba",
        window: int = 10,
        start: str | Time[Any] = "0.0dur",
    ) -> None:
        super().__init__(interval, start)
        if window < 2:
            raise ValueError(f"window={window!r} must be at least 2: one checkpoint is no mean.")
        self.window = window
        self._kept: deque[EMAParameters] = deque(maxlen=window)

    def update(self, model: torch.nn.Module) -> None:
        """Keeps the model's weights, and makes the mean of those that are kept."""
        assert self.ema_model is not None
        is_sharded = any(as_sharded(parameter) is not None for parameter in model.parameters())
        self._kept.append(EMAParameters(model, None if is_sharded else torch.device("cpu")))
        for number, each in enumerate(self._kept, 1):
            each.device = self._kept[-1].device
            each.move_params_to_device(model)  # it may come from a checkpoint
            self.ema_model.move_towards(each, 1 / number)

    def state_dict(self) -> dict[str, Any]:
        """Returns the mean, or while it is in the model the trained weights, and the copies."""
        held = None if self.ema_model is None else self.ema_model.state_dict()
        return {
            **super().state_dict(),
            "average": held or EMAParameters().state_dict(),
            "is_active": self.ema_weights_active,
            "is_started": self.ema_started,
            "kept": {str(number): each.state_dict() for number, each in enumerate(self._kept)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` returned."""
        self.ema_weights_active = state["is_active"]
        self.ema_started = state["is_started"]
        self.ema_model = EMAParameters()
        self.ema_model.load_state_dict(state["average"])
        self._kept.clear()
        for number in range(len(state["kept"])):
            self._kept.append(EMAParameters())
            self._kept[-1].load_state_dict(state["kept"][str(number)])
