"""Changes for a run that goes on from a checkpoint: another rate, frozen layers."""

import logging

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State

__all__ = ["GlobalLRScaling", "LayerFreezing"]

log = logging.getLogger(__name__)


class GlobalLRScaling(Callback):
    """Scales the learning rate of a loaded run, whatever its schedule.

    Args:
        lr_scale: Factor on the rate of every group.
        wd_pct: The new weight decay as a share of the new rate.
    """

    def __init__(self, lr_scale: float, wd_pct: float = 0.0) -> None:
        super().__init__()
        self.lr_scale = lr_scale
        self.wd_pct = wd_pct

    def fit_start(self, state: State, logger: Logger) -> None:
        """Scales the rates of the optimizers and the base rates of the schedules."""
        for optimizer in state.optimizers:
            for group in optimizer.param_groups:
                group["lr"] *= self.lr_scale
                group["weight_decay"] = group["lr"] * self.wd_pct
                if "initial_lr" in group:
                    group["initial_lr"] *= self.lr_scale
                log.info("Set LR and WD to %s, %s", group["lr"], group["weight_decay"])
        for scheduler in state.schedulers:
            scheduler.base_lrs = [self.lr_scale * lr for lr in scheduler.base_lrs]


class LayerFreezing(Callback):
    """Freezes parameters by name.

    The optimizer of a resumed run must have seen the parameters when it was saved, so they are
    frozen after loading and not when the model is built.

    Args:
        layer_names: Full names of parameters, as the model lists them.
    """

    def __init__(self, layer_names: list[str]) -> None:
        super().__init__()
        self.layer_names = set(layer_names)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Freezes the parameters."""
        parameters = dict(state.model.named_parameters())
        unknown = sorted(self.layer_names - parameters.keys())
        if unknown:
            raise ValueError(
                f"layer_freezing: the model has no parameters {unknown}. It has, among others, "
                f"{sorted(parameters)[:5]}."
            )
        if not self.layer_names:
            raise ValueError("layer_freezing: layer_names is empty, so it would freeze nothing.")
        for name in self.layer_names:
            parameters[name].requires_grad = False
