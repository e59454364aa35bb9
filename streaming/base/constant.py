"""Numbers that several modules of the package share."""

DEFAULT_TIMEOUT = 60.0
"""Seconds that one download may take before it counts as failed."""

TICK = 0.007
"""Seconds between two looks at something that another process is making."""

DEFAULT_SHUFFLE_BLOCK = 1 << 18
"""Samples that are mixed with each other; it bounds how many shards are needed at a time."""
