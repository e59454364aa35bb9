"""The logger of the MosaicML platform, which is gone, and the environment variables it set."""

from composer.loggers._removed import RemovedLogger

__all__ = [
    "MOSAICML_ACCESS_TOKEN_ENV_VAR",
    "MOSAICML_GPU_LOG_FILE_PREFIX_ENV_VAR",
    "MOSAICML_LOG_DIR_ENV_VAR",
    "MOSAICML_PLATFORM_ENV_VAR",
    "RUN_NAME_ENV_VAR",
    "MosaicMLLogger",
]

RUN_NAME_ENV_VAR = "RUN_NAME"
MOSAICML_PLATFORM_ENV_VAR = "MOSAICML_PLATFORM"
MOSAICML_ACCESS_TOKEN_ENV_VAR = "MOSAICML_ACCESS_TOKEN_FILE"
MOSAICML_LOG_DIR_ENV_VAR = "MOSAICML_LOG_DIR"
MOSAICML_GPU_LOG_FILE_PREFIX_ENV_VAR = "MOSAICML_GPU_LOG_FILE_PREFIX"


class MosaicMLLogger(RemovedLogger):
    """Says what to use in its place."""

    advice = (
        "the MosaicML platform is gone; use WandBLogger, MLFlowLogger, TensorboardLogger or "
        "FileLogger"
    )
