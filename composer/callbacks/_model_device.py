"""Where the model is, for callbacks that watch its memory."""

import torch

from composer.core.state import State


def get_model_device(state: State) -> torch.device:
    """Returns the device of the model's first parameter; the run's, if it has none."""
    parameter = next(state.model.parameters(), None)
    return state.device._device if parameter is None else parameter.device
