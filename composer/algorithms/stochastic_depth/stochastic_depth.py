"""Stochastic depth: residual blocks left out at random (Huang et al., 1603.09382)."""

from typing import Any, TypeVar

import torch

from composer.algorithms.stochastic_depth.stochastic_layers import (
    bottlenecks,
    make_resnet_bottleneck_stochastic,
)
from composer.algorithms.utils.surgery import ModelSurgery, OnNoMatch, report_no_match
from composer.core.duration import Time
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time_unit import TimeUnit

M = TypeVar("M", bound=torch.nn.Module)

# For each kind of layer, what finds those of a model and what makes one stochastic.
_STOCHASTIC_LAYER_MAPPING = {"ResNetBottleneck": (bottlenecks, make_resnet_bottleneck_stochastic)}


def apply_stochastic_depth(
    model: M,
    target_layer_name: str,
    stochastic_method: str = "block",
    drop_rate: float = 0.2,
    drop_distribution: str = "linear",
    on_no_match: OnNoMatch = "raise",
) -> M:
    """Lets residual blocks leave out their main branch at random; changes and returns the model.

    Parameters and their names stay, so optimizers need no change.

    Args:
        model: The model.
        target_layer_name: ``"ResNetBottleneck"``: torchvision's and transformers'.
        stochastic_method: ``"block"`` leaves a block out for the whole batch, and saves its time;
            ``"sample"`` leaves it out for some of the samples.
        drop_rate: How often the branch is left out.
        drop_distribution: ``"uniform"``, or ``"linear"`` with a rate that grows with depth up to
            ``drop_rate``.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no such block.

    Raises:
        NoMatchError: If there is no such block.
        ValueError: If a name is unknown, or the rate is none.
    """
    _check_settings(target_layer_name, stochastic_method, drop_rate, drop_distribution)
    if not _set_rates(model, target_layer_name, stochastic_method, drop_rate, drop_distribution):
        report_no_match("StochasticDepth", f"no {target_layer_name}", on_no_match)
    return model


def _set_rates(
    model: torch.nn.Module,
    target_layer_name: str,
    stochastic_method: str,
    drop_rate: float,
    drop_distribution: str,
) -> int:
    """Makes the blocks of a model stochastic, or gives them new rates; returns how many."""
    find, make = _STOCHASTIC_LAYER_MAPPING[target_layer_name]
    found = find(model)
    for index, layer in enumerate(found):
        make(layer, index, len(found), drop_rate, drop_distribution, stochastic_method)
    return len(found)


def _check_settings(
    target_layer_name: str, stochastic_method: str, drop_rate: float, drop_distribution: str
) -> None:
    for name, value, known in (
        ("target_layer_name", target_layer_name, _STOCHASTIC_LAYER_MAPPING),
        ("stochastic_method", stochastic_method, ("block", "sample")),
        ("drop_distribution", drop_distribution, ("uniform", "linear")),
    ):
        if value not in known:
            raise ValueError(f"{name}={value!r} is unknown; use one of {', '.join(known)}.")
    if not 0 <= drop_rate <= 1:
        raise ValueError(f"drop_rate={drop_rate} is not a rate: it must be in [0, 1].")


class StochasticDepth(ModelSurgery):
    """Leaves residual blocks out at random, which regularises deep networks and saves time.

    ``"block"`` does not go together with sharding, where all ranks have to run the same blocks.

    Args:
        target_layer_name: ``"ResNetBottleneck"``: torchvision's and transformers'.
        stochastic_method: ``"block"`` leaves a block out for the whole batch, and saves its time;
            ``"sample"`` leaves it out for some of the samples.
        drop_rate: How often the branch is left out.
        drop_distribution: ``"uniform"``, or ``"linear"`` with a rate that grows with depth up to
            ``drop_rate``.
        drop_warmup: For how long, as a part of training or a time string, rates grow from 0; only
            for ``"block"``.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no such block.

    Raises:
        ValueError: If a name is unknown, the rate is none, or ``"sample"`` is to warm up.
    """

    def __init__(
        self,
        target_layer_name: str,
        stochastic_method: str = "block",
        drop_rate: float = 0.2,
        drop_distribution: str = "linear",
        drop_warmup: float | Time[Any] | str = 0.0,
        on_no_match: OnNoMatch = "raise",
    ) -> None:
        super().__init__(on_no_match)
        _check_settings(target_layer_name, stochastic_method, drop_rate, drop_distribution)
        self.target_layer_name = target_layer_name
        self.stochastic_method = stochastic_method
        self.drop_rate = drop_rate
        self.drop_distribution = drop_distribution
        self.num_stochastic_layers = 0
        """How many blocks of the model it has changed."""
        self.drop_warmup = str(drop_warmup) if isinstance(drop_warmup, Time) else drop_warmup
        is_part = isinstance(drop_warmup, (int, float))
        self._warmup: Time[Any] = (
            Time(float(drop_warmup), TimeUnit.DURATION) if is_part else Time.from_input(drop_warmup)
        )
        if self._warmup.value > 0 and stochastic_method == "sample":
            raise ValueError(
                f"drop_warmup={drop_warmup} is not possible with stochastic_method='sample'; leave "
                "it at 0, or use 'block'."
            )

    @property
    def find_unused_parameters(self) -> bool:
        """Tells DDP that blocks which are left out get no gradients."""
        return self.stochastic_method == "block"

    def match(self, event: Event, state: State) -> bool:
        """Matches INIT and, while rates grow, the start of batches."""
        return event == Event.INIT or (event == Event.BATCH_START and self._warmup.value > 0)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Changes the blocks of the model, or their rates."""
        kind = state.model, self.target_layer_name, self.stochastic_method
        if event == Event.BATCH_START:
            rate = self.drop_rate * self._warmed_up(state)
            _set_rates(*kind, rate, self.drop_distribution)
            logger.log_metrics({"stochastic_depth/drop_rate": rate})
            return None
        apply_stochastic_depth(*kind, self.drop_rate, self.drop_distribution, self.on_no_match)
        self.num_stochastic_layers = len(bottlenecks(state.model))
        logger.log_hyperparameters(
            {
                "stochastic_depth/num_stochastic_layers": self.num_stochastic_layers,
                "stochastic_depth/drop_rate": self.drop_rate,
            }
        )
        return None

    def _warmed_up(self, state: State) -> float:
        """Returns how much of the warm-up is over, at most 1."""
        if self._warmup.unit == TimeUnit.DURATION:
            elapsed: Any = state.get_elapsed_duration()
        else:
            elapsed = state.timestamp.get(self._warmup.unit)
        return min(1.0, float(elapsed) / float(self._warmup))
