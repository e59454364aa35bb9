"""Channels last: convolutions on the memory layout that accelerators prefer."""

import torch

from composer.algorithms.utils.surgery import ModelSurgery, OnNoMatch, report_no_match
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State


def apply_channels_last(
    model: torch.nn.Module, on_no_match: OnNoMatch = "raise"
) -> torch.nn.Module:
    """Stores the weights of 2-d convolutions channels last; changes and returns the model.

    Activations follow the weights, so inputs need no change.

    Args:
        model: The model.
        on_no_match: ``"raise"`` or ``"warn"`` if no weight has four dimensions.

    Raises:
        NoMatchError: If no weight has four dimensions.
    """
    if not any(parameter.ndim == 4 for parameter in model.parameters()):
        report_no_match("ChannelsLast", "no parameter of four dimensions", on_no_match)
        return model
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class ChannelsLast(ModelSurgery):
    """Stores the weights of 2-d convolutions channels last, so that tensor cores need no copies.

    Args:
        on_no_match: ``"raise"`` or ``"warn"`` if no weight has four dimensions.
    """

    def __init__(self, on_no_match: OnNoMatch = "raise") -> None:
        super().__init__(on_no_match)

    @staticmethod
    def required_on_load() -> bool:
        """Tells that weights load into any layout."""
        return False

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Changes the layout of the model's weights."""
        if state.fsdp_config is not None:
            raise ValueError(
                "ChannelsLast does not combine with FSDP, which only shards weights in their usual "
                "layout; leave it out, or train with replicas."
            )
        apply_channels_last(state.model, self.on_no_match)
        return None
