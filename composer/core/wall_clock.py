"""Wall-clock strings, ``1h30m`` and the like, to seconds."""

from __future__ import annotations

import re
import warnings

_FIELDS = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_ENDS_WITHOUT_UNIT = re.compile(r"(?:.*[hms])?\d*", re.ASCII)


def verify_wct(timestamp: str) -> str:
    """Returns a wall-clock string with all its fields, ``90m`` as ``0h90m0s``.

    The numbers may be as large as one likes: ``48h`` and ``90m`` are what they say. A number
    without a unit at the end is read as upstream reads it, with ``0s`` written behind it (``5`` is
    fifty seconds), and warned about.

    Raises:
        ValueError: If it is not a wall-clock string.
    """
    text = timestamp
    if _ENDS_WITHOUT_UNIT.fullmatch(text) and not text.endswith(("h", "m", "s")):
        text += "0s"
    match = _FIELDS.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"Invalid time string: {timestamp}")
    hours, minutes, seconds = (int(field or 0) for field in match.groups())
    if text != timestamp:
        total = hours * 3600 + minutes * 60 + seconds
        warnings.warn(
            f"The time string {timestamp!r} does not end in a unit and is read as {total} seconds; "
            "write its unit, such as 5s, 5ba or 5ep",
            category=UserWarning,
            stacklevel=2,
        )
    return f"{hours}h{minutes}m{seconds}s"


def parse_wall_clock(timestamp: str) -> int:
    """Returns the seconds of a wall-clock string: ``1h30m`` is 5400.

    Raises:
        ValueError: If it is not one.
    """
    match = _FIELDS.fullmatch(verify_wct(timestamp))
    assert match is not None
    hours, minutes, seconds = (int(field) for field in match.groups())
    return hours * 3600 + minutes * 60 + seconds
