"""The Trainer: the public class, and behind it the loops that do the work."""

from composer.trainer.trainer import Trainer

__all__ = ["Trainer"]
