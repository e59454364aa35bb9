"""Face of the loggers that recipes name."""

from composer.utils.lazy import handed_on

__all__ = ["FileLogger", "InMemoryLogger"]

__getattr__ = handed_on(
    {
        "FileLogger": "composer.loggers.file_logger",
        "InMemoryLogger": "composer.loggers.in_memory_logger",
    }
)
