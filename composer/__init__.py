"""Trains any PyTorch model: a Trainer with events, algorithms, callbacks and checkpoints."""

from composer._version import __version__
from composer.utils.lazy import handed_on

__all__ = [
    "Algorithm",
    "Callback",
    "ComposerModel",
    "DataSpec",
    "Engine",
    "Evaluator",
    "Event",
    "Logger",
    "State",
    "Time",
    "TimeUnit",
    "Timestamp",
    "Trainer",
    "__version__",
    "algorithms",
    "callbacks",
    "checkpoint",
    "cli",
    "core",
    "devices",
    "distributed",
    "functional",
    "loggers",
    "loss",
    "metrics",
    "models",
    "optim",
    "profiler",
    "trainer",
    "utils",
]

# Not at the top: they need torch, and the command lines answer --help without.
__getattr__ = handed_on(
    {
        "Algorithm": "composer.core.algorithm",
        "Callback": "composer.core.callback",
        "ComposerModel": "composer.models.base",
        "DataSpec": "composer.core.data_spec",
        "Engine": "composer.core.engine",
        "Evaluator": "composer.core.evaluator",
        "Event": "composer.core.event",
        "Logger": "composer.core.logger",
        "State": "composer.core.state",
        "Time": "composer.core.time",
        "TimeUnit": "composer.core.time",
        "Timestamp": "composer.core.time",
        "Trainer": "composer.trainer.trainer",
    }
    | {name: f"composer.{name}:" for name in __all__ if name.islower() and name.isalpha()}
)
