"""Loggers that Composer had and whose services are gone: who makes one is told what to use."""

from typing import Any, ClassVar

from composer.core.logger_destination import LoggerDestination
from composer.utils.import_helpers import MissingConditionalImportError

__all__ = ["RemovedLogger"]


class _RemovedError(MissingConditionalImportError):
    """Is caught by whoever goes without a logger whose package is missing."""

    def __init__(self, message: str) -> None:
        ImportError.__init__(self, message)


class RemovedLogger(LoggerDestination):
    """A logger that can be imported and asked for with ``isinstance``, but not made."""

    advice: ClassVar[str]
    """Why it is gone, and what to use."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise _RemovedError(f"{type(self).__name__} is not part of this project: {self.advice}.")
