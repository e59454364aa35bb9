"""The precision context of a run, for algorithms that run the model or its loss themselves."""

from contextlib import AbstractContextManager
from typing import Any

from composer.core.precision import get_precision_context
from composer.core.state import State


def autocast_of(state: State) -> AbstractContextManager[Any]:
    """Returns the context in which the trainer runs forward passes and losses."""
    return get_precision_context(
        state.precision, state.precision_config, device_type=state.device._device.type
    )
