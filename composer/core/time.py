"""Time, Timestamp and their units, under their public path; the homes are beside this file."""

from composer.core.duration import Time, TValue, ensure_time
from composer.core.time_unit import TimeUnit
from composer.core.timestamp import Timestamp
from composer.core.wall_clock import verify_wct

__all__ = ["TValue", "Time", "TimeUnit", "Timestamp", "ensure_time", "verify_wct"]
