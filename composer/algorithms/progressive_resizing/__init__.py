"""Progressive resizing: begins training with smaller images."""

from composer.algorithms.progressive_resizing.progressive_resizing import (
    ProgressiveResizing,
    resize_batch,
)

__all__ = ["ProgressiveResizing", "resize_batch"]
