"""Face of the loggers that recipes name."""

from composer.utils.lazy import handed_on

__all__ = [
    "CometMLLogger",
    "FileLogger",
    "InMemoryLogger",
    "MLFlowLogger",
    "SlackLogger",
    "TensorboardLogger",
    "TrackioLogger",
    "WandBLogger",
]

__getattr__ = handed_on(
    {
        "CometMLLogger": "composer.loggers.cometml_logger",
        "FileLogger": "composer.loggers.file_logger",
        "InMemoryLogger": "composer.loggers.in_memory_logger",
        "MLFlowLogger": "composer.loggers.mlflow_logger",
        "SlackLogger": "composer.loggers.slack_logger",
        "TensorboardLogger": "composer.loggers.tensorboard_logger",
        "TrackioLogger": "composer.loggers.trackio_logger",
        "WandBLogger": "composer.loggers.wandb_logger",
    }
)
