"""The mean of the last checkpoints, evaluated and saved in place of the newest."""

from composer.algorithms.checkpoint_averaging.checkpoint_averaging import CheckpointAveraging

__all__ = ["CheckpointAveraging"]
