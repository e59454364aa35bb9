"""No-op model: a model that costs nothing, to measure what everything around it costs."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from composer.algorithms.utils.surgery import ModelSurgery
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.models.base import ComposerModel


class NoOpModelClass(ComposerModel):
    """Multiplies the targets by its one weight, and calls the result its output.

    Args:
        original_model: The model that it stands for; its device is taken over.
    """

    def __init__(self, original_model: torch.nn.Module) -> None:
        super().__init__()
        device = next((parameter.device for parameter in original_model.parameters()), None)
        self.weights = torch.nn.Parameter(torch.tensor([1.5], device=device))

    def forward(self, batch: Any) -> torch.Tensor:
        """Returns the targets times the weight."""
        return _targets(batch) * self.weights

    def loss(self, outputs: torch.Tensor, batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Returns the mean squared error."""
        return F.mse_loss(outputs, _targets(batch))

    def eval_forward(self, batch: Any, outputs: Any = None) -> torch.Tensor:
        """Returns the targets."""
        return _targets(batch)

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        """Returns the mean squared error, which any targets have."""
        from torchmetrics import MeanSquaredError

        return {"MeanSquaredError": MeanSquaredError()}

    def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
        """Adds a batch to the metric."""
        metric.update(outputs, _targets(batch))


def _targets(batch: Any) -> torch.Tensor:
    targets = batch["labels"] if isinstance(batch, Mapping) else batch[1]
    return targets.to(torch.float32)


class NoOpModel(ModelSurgery):
    """Replaces the model by one that does nothing, so that a run takes as long as all the rest.

    Batches are pairs of input and target, or have ``"labels"``.
    """

    def __init__(self) -> None:
        super().__init__()

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Replaces the model, and gives the optimizer its one parameter."""
        state.model = NoOpModelClass(state.model)
        for optimizer in state.optimizers:
            del optimizer.param_groups[1:]
            optimizer.param_groups[0]["params"] = [state.model.weights]
            optimizer.state.clear()
        return None
