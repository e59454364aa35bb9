"""Loggers: destinations that carry out what a run has to tell."""

from composer.core.logger import Logger
from composer.core.logger_destination import LoggerDestination
from composer.loggers.console_logger import ConsoleLogger
from composer.loggers.file_logger import FileLogger
from composer.loggers.in_memory_logger import InMemoryLogger
from composer.loggers.progress_bar_logger import ProgressBarLogger
from composer.utils.lazy import handed_on

__all__ = [
    "CometMLLogger",
    "ConsoleLogger",
    "FileLogger",
    "InMemoryLogger",
    "Logger",
    "LoggerDestination",
    "MLFlowLogger",
    "MosaicMLLogger",
    "NeptuneLogger",
    "ProgressBarLogger",
    "RemoteUploaderDownloader",
    "SlackLogger",
    "TensorboardLogger",
    "TrackioLogger",
    "WandBLogger",
]

__getattr__ = handed_on(
    {
        "CometMLLogger": "composer.loggers.cometml_logger",
        "MLFlowLogger": "composer.loggers.mlflow_logger",
        "MosaicMLLogger": "composer.loggers.mosaicml_logger",
        "NeptuneLogger": "composer.loggers.neptune_logger",
        "RemoteUploaderDownloader": "composer.loggers.remote_uploader_downloader",
        "SlackLogger": "composer.loggers.slack_logger",
        "TensorboardLogger": "composer.loggers.tensorboard_logger",
        "TrackioLogger": "composer.loggers.trackio_logger",
        "WandBLogger": "composer.loggers.wandb_logger",
    }
)
