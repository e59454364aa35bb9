"""Blur pool: strided layers made free of aliasing by a blur (Zhang, 1904.11486)."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

from composer.algorithms.blurpool.blurpool_layers import BlurConv2d, BlurMaxPool2d
from composer.algorithms.utils.surgery import (
    ModelSurgery,
    OnNoMatch,
    computes_as,
    report_no_match,
    stays,
)
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils.module_surgery import count_module_instances, replace_module_classes

M = TypeVar("M", bound=torch.nn.Module)


def apply_blurpool(
    model: M,
    replace_convs: bool = True,
    replace_maxpools: bool = True,
    blur_first: bool = True,
    min_channels: int = 16,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
    on_no_match: OnNoMatch = "raise",
) -> M:
    """Adds a blur to strided convolutions and max pools; changes and returns the model.

    Convolutions keep their parameters, so optimizers need no change.

    Args:
        model: The model.
        replace_convs: Whether strided convolutions blur.
        replace_maxpools: Whether max pools blur.
        blur_first: Whether convolutions blur their input, instead of what they compute at stride 1.
        min_channels: Convolutions that read fewer channels are left alone.
        optimizers: Accepted for the sake of a common signature.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no such layer.

    Raises:
        NoMatchError: If there is no such layer.
        ValueError: If neither kind is to be replaced.
    """
    _check_kinds(replace_convs, replace_maxpools)

    def pool(module: Any, index: int) -> torch.nn.Module | None:
        is_plain = computes_as(module, torch.nn.MaxPool2d) and not module.return_indices
        return BlurMaxPool2d.from_maxpool2d(module, index) if is_plain else None

    def conv(module: Any, index: int) -> torch.nn.Module | None:
        is_strided = max(module.stride) > 1 and module.in_channels >= min_channels
        if not is_strided or hasattr(module, "_already_blurpooled"):
            return None
        if not computes_as(module, torch.nn.Conv2d):
            return None
        return BlurConv2d.from_conv2d(module, index, blur_first)

    policies: dict[Any, Any] = {BlurMaxPool2d: stays, BlurConv2d: stays}
    if replace_maxpools:
        policies[torch.nn.MaxPool2d] = pool
    if replace_convs:
        policies[torch.nn.Conv2d] = conv
    if not replace_module_classes(model, policies, optimizers):
        wanted = " or ".join(
            ["MaxPool2d"] * replace_maxpools
            + [f"Conv2d with a stride and min_channels={min_channels} inputs"] * replace_convs
        )
        report_no_match("BlurPool", f"no {wanted}", on_no_match)
    return model


def _check_kinds(replace_convs: bool, replace_maxpools: bool) -> None:
    if not (replace_convs or replace_maxpools):
        raise ValueError(
            "replace_convs and replace_maxpools are both False, so that BlurPool would do nothing; "
            "set one of them, or leave BlurPool out."
        )


class BlurPool(ModelSurgery):
    """Adds a blur to strided convolutions and max pools, so that shifts change outputs less.

    Args:
        replace_convs: Whether strided convolutions blur.
        replace_maxpools: Whether max pools blur.
        blur_first: Whether convolutions blur their input, instead of what they compute at stride 1.
        min_channels: Convolutions that read fewer channels are left alone.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no such layer.

    Raises:
        ValueError: If neither kind is to be replaced.
    """

    def __init__(
        self,
        replace_convs: bool = True,
        replace_maxpools: bool = True,
        blur_first: bool = True,
        min_channels: int = 16,
        on_no_match: OnNoMatch = "raise",
    ) -> None:
        super().__init__(on_no_match)
        _check_kinds(replace_convs, replace_maxpools)
        self.replace_convs = replace_convs
        self.replace_maxpools = replace_maxpools
        self.blur_first = blur_first
        self.min_channels = min_channels

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Changes the layers of the model."""
        apply_blurpool(
            state.model,
            self.replace_convs,
            self.replace_maxpools,
            self.blur_first,
            self.min_channels,
            state.optimizers,
            self.on_no_match,
        )
        logger.log_hyperparameters(
            {
                "blurpool/num_blurpool_layers": count_module_instances(state.model, BlurMaxPool2d),
                "blurpool/num_blurconv_layers": count_module_instances(state.model, BlurConv2d),
            }
        )
        return None
