"""What the profiler does in a batch."""

from composer.utils.string_enum import StringEnum


class ProfilerAction(StringEnum):
    """Says what happens in a batch: nothing, warming up, recording, or recording and saving."""

    SKIP = "skip"
    WARMUP = "warmup"
    ACTIVE = "active"
    ACTIVE_AND_SAVE = "active_and_save"
