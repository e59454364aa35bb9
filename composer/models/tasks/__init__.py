"""Models that wrap any module for a task."""

from composer.models.tasks.classification import ComposerClassifier

__all__ = ["ComposerClassifier"]
