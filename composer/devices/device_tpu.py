"""Google TPUs, through torch_xla."""

from __future__ import annotations

from composer.devices._xla import DeviceXLA


class DeviceTPU(DeviceXLA):
    """Trains on a TPU."""

    name = "tpu"
