"""From a device's name to the device, and what is installed for it."""

from __future__ import annotations

import importlib.util

import torch

from composer.devices.device import Device
from composer.devices.device_cpu import DeviceCPU
from composer.devices.device_gpu import DeviceGPU
from composer.devices.device_hpu import DeviceHPU
from composer.devices.device_mps import DeviceMPS
from composer.devices.device_neuron import DeviceNeuron
from composer.devices.device_tpu import DeviceTPU

_DEVICES: dict[str, type[Device]] = {
    "cpu": DeviceCPU,
    "gpu": DeviceGPU,
    "mps": DeviceMPS,
    "neuron": DeviceNeuron,
    "tpu": DeviceTPU,
    "hpu": DeviceHPU,
}


def get_device(device: str | Device | None = None) -> Device:
    """Returns the device of that name; without one, a GPU if torch sees one, else the CPU.

    Args:
        device: "cpu", "gpu", "mps", "tpu", "neuron" or "hpu" in any case; a Device is handed back.

    Raises:
        ValueError: If there is no device of that name.
    """
    if isinstance(device, Device):
        return device
    if device is None:
        device = "gpu" if torch.cuda.is_available() else "cpu"
    kind = _DEVICES.get(device.lower())
    if kind is None:
        raise ValueError(f"device {device!r} is not one of {', '.join(_DEVICES)}")
    return kind()


def is_xla_installed() -> bool:
    """Tells whether torch_xla, for TPUs and Trainium, is installed."""
    return importlib.util.find_spec("torch_xla") is not None


def is_hpu_installed() -> bool:
    """Tells whether habana_frameworks, for Gaudi, is installed."""
    return importlib.util.find_spec("habana_frameworks") is not None
