"""The units in which callbacks report wall-clock time."""

SECONDS_PER_UNIT = {"seconds": 1, "minutes": 60, "hours": 60 * 60, "days": 24 * 60 * 60}


def get_seconds_per_unit(time_unit: str) -> int:
    """Returns the length of ``time_unit`` in seconds; an unknown unit is a ``ValueError``."""
    if time_unit not in SECONDS_PER_UNIT:
        raise ValueError(
            f"time_unit={time_unit!r} is unknown; use one of {', '.join(SECONDS_PER_UNIT)}."
        )
    return SECONDS_PER_UNIT[time_unit]
