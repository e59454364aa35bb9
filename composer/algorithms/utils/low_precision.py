"""Norm layers that compute in autocast's dtype, where torch would compute in fp32."""

import warnings
from typing import Any, ClassVar

import torch

from composer.algorithms.utils.surgery import ModelSurgery, OnNoMatch, report_no_match
from composer.algorithms.warnings import NoEffectWarning
from composer.core.event import Event
from composer.core.precision import Precision
from composer.core.protocols import RunOrder
from composer.core.state import State

_EVENTS = (Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Returns autocast's dtype for a device; None where autocast is off."""
    if not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def cast(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Returns the tensor in a dtype; None for None."""
    return None if tensor is None else tensor.to(dtype)


def lower_precision(
    model: torch.nn.Module,
    norm: type[torch.nn.Module],
    low: type[torch.nn.Module],
    precision: Precision | str | None,
    on_no_match: OnNoMatch,
) -> torch.nn.Module:
    """Turns every norm layer of a class into its low-precision form; changes and returns the model.

    The layers stay the same objects, so that sharding, hooks and optimizers keep what they hold.

    Args:
        model: The model.
        norm: Torch's class.
        low: Its subclass, with the same attributes.
        precision: The precision of the training.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no such layer.
    """
    known = None if precision is None else Precision(precision)
    if known not in (Precision.AMP_FP16, Precision.AMP_BF16):
        warnings.warn(
            f"Low precision {norm.__name__} only has an effect with amp_fp16 or amp_bf16, not with "
            f"precision {precision}. The model is left as it is.",
            NoEffectWarning,
            stacklevel=3,
        )
        return model
    found = [module for module in model.modules() if type(module) is norm]
    for module in found:
        module.__class__ = low
    if not found and not any(isinstance(module, low) for module in model.modules()):
        report_no_match(f"LowPrecision{norm.__name__}", f"no {norm.__name__}", on_no_match)
    return model


class LowPrecisionNorm(ModelSurgery):
    """What the two algorithms share: when they act, and that others go first.

    Args:
        apply_at: INIT, BEFORE_LOAD or AFTER_LOAD, or its name.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no such layer.
    """

    run_order: ClassVar[RunOrder] = "last"

    def __init__(self, apply_at: Any = Event.INIT, on_no_match: OnNoMatch = "raise") -> None:
        super().__init__(on_no_match)
        self.apply_at = Event(apply_at)
        if self.apply_at not in _EVENTS:
            raise ValueError(
                f"apply_at={self.apply_at} is not possible; use one of "
                f"{', '.join(str(event) for event in _EVENTS)}."
            )

    def match(self, event: Event, state: State) -> bool:
        """Matches ``apply_at``."""
        return event == self.apply_at
