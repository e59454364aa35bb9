"""The logger of Neptune, a service that has ended."""

from composer.loggers._removed import RemovedLogger

__all__ = ["NeptuneLogger"]


class NeptuneLogger(RemovedLogger):
    """Says what to use in its place."""

    advice = "the service has ended; use WandBLogger, MLFlowLogger, CometMLLogger or TrackioLogger"
