"""Loggers: destinations that carry out what a run has to tell."""

from composer.core.logger import Logger
from composer.core.logger_destination import LoggerDestination
from composer.loggers.console_logger import ConsoleLogger
from composer.loggers.file_logger import FileLogger
from composer.loggers.in_memory_logger import InMemoryLogger
from composer.loggers.progress_bar_logger import ProgressBarLogger

__all__ = [
    "ConsoleLogger",
    "FileLogger",
    "InMemoryLogger",
    "Logger",
    "LoggerDestination",
    "ProgressBarLogger",
]
