"""Channels last: convolutions on the memory layout that accelerators prefer."""

from composer.algorithms.channels_last.channels_last import ChannelsLast, apply_channels_last

__all__ = ["ChannelsLast", "apply_channels_last"]
