"""shim: devices live in composer.devices."""

from composer.devices.factory import get_device, is_hpu_installed, is_xla_installed

__all__ = ["get_device", "is_hpu_installed", "is_xla_installed"]
