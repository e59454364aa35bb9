"""Label smoothing: a little probability for every class."""

from composer.algorithms.label_smoothing.label_smoothing import LabelSmoothing, smooth_labels

__all__ = ["LabelSmoothing", "smooth_labels"]
