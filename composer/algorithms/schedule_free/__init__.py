"""Evaluates and saves the average that an optimizer keeps."""

from composer.algorithms.schedule_free.schedule_free import ScheduleFree

__all__ = ["ScheduleFree"]
