"""The exact order: what comes when, whoever loads it."""

from streaming.base.order.epoch import EpochOrder, Mixture, order
from streaming.base.order.sequence import StreamDraw
from streaming.base.order.slices import Slicer

__all__ = ["EpochOrder", "Mixture", "Slicer", "StreamDraw", "order"]
