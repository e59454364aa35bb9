"""AWS Trainium, through torch_xla."""

from __future__ import annotations

import os

from composer.devices._xla import DeviceXLA


class DeviceNeuron(DeviceXLA):
    """Trains on AWS Trainium.

    Sets PJRT_DEVICE and NEURON_CC_FLAGS, which the Neuron runtime reads when it starts, unless they
    are set already.
    """

    name = "neuron"

    def __init__(self) -> None:
        os.environ.setdefault("PJRT_DEVICE", "NEURON")
        os.environ.setdefault("NEURON_CC_FLAGS", "--model-type=transformer")
        super().__init__()
