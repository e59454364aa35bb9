"""Z-loss: keeps logits from drifting away together (PaLM, arXiv 2204.02311; OLMo 2)."""

from collections.abc import Mapping
from typing import Any

import torch

from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils.misc import unwrap_model


def compute_z_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    coefficient: float = 1e-4,
    ignore_index: int = -100,
) -> torch.Tensor:
    """Returns ``coefficient`` times the mean square of the logits' log normalisers.

    The mean is over targets, as that of the cross-entropy, to which it is added; with no target it
    is zero.

    Args:
        logits: One row of logits for each target.
        targets: The right classes, without the logits' last axis.
        coefficient: How much it counts.
        ignore_index: Targets with this value count nothing.

    Raises:
        ValueError: If the targets do not fit the logits.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"Targets of shape {tuple(targets.shape)} do not fit logits of shape "
            f"{tuple(logits.shape)}: they have the logits' shape without its last axis."
        )
    is_target = targets != ignore_index
    squares = torch.logsumexp(logits.float(), dim=-1).square()
    return coefficient * (squares * is_target).sum() / is_target.sum().clamp(min=1)


class ZLoss(Algorithm):
    """Adds the z-loss to the training loss, so that the softmax keeps its normaliser near one.

    A model with a method ``fuse_z_loss(coefficient) -> bool``, as the MPT has, adds it while it
    computes the cross-entropy, which costs nothing and holds no logits. Of other models it reads
    the logits and the labels: transformers models and classifiers.

    Args:
        coefficient: How much it counts.
        target_key: Where the batch has its targets, for models whose batch is no mapping with
            ``labels``.

    Raises:
        ValueError: If the coefficient is not positive.
    """

    def __init__(self, coefficient: float = 1e-4, target_key: Any = 1) -> None:
        if not coefficient > 0:
            raise ValueError(
                f"coefficient={coefficient!r} must be positive; leave ZLoss out to train without."
            )
        self.coefficient = coefficient
        self.target_key = target_key
        self._is_fused = False

    def match(self, event: Event, state: State) -> bool:
        """Matches around training, when the model can be asked to fuse it; else at each loss."""
        is_around = event in (Event.FIT_START, Event.FIT_END)
        return is_around or (event is Event.AFTER_LOSS and not self._is_fused)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Has the model add it while it trains, or adds it to the loss."""
        model: Any = unwrap_model(state.model)
        if event is not Event.AFTER_LOSS:
            fuse = getattr(model, "fuse_z_loss", None)
            coefficient = self.coefficient if event is Event.FIT_START else 0.0
            self._is_fused = fuse is not None and fuse(coefficient)
            return
        logits, targets = self._logits_and_targets(model, state)
        state.loss = _with_part(state.loss, compute_z_loss(logits, targets, self.coefficient))

    def _logits_and_targets(self, model: Any, state: State) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, batch = state.outputs, state.batch
        has_labels = isinstance(batch, Mapping) and "labels" in batch
        logits: Any = outputs["logits"] if isinstance(outputs, Mapping) else outputs
        if not isinstance(logits, torch.Tensor):
            raise ValueError(
                f"ZLoss needs logits, and the model's outputs are {type(outputs).__name__}; let it "
                "return them, or a mapping with 'logits', or give it a method fuse_z_loss."
            )
        targets = batch["labels"] if has_labels else state.batch_get_item(self.target_key)
        if getattr(model, "shift_labels", False):
            logits, targets = logits[..., :-1, :], targets[..., 1:]
        return logits, targets


def _with_part(loss: Any, z_loss: torch.Tensor) -> Any:
    """Returns a loss of any shape that a model may give, with another part."""
    if isinstance(loss, torch.Tensor):
        return loss + z_loss
    if isinstance(loss, Mapping):
        total = {"total": loss["total"] + z_loss} if "total" in loss else {}
        return {**loss, **total, "z_loss": z_loss}
    return [*loss, z_loss]
