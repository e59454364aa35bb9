"""The resolved recipe as a run prints and logs it."""

import warnings
from typing import Any

from omegaconf import OmegaConf

from composer.core.logger import Logger
from composer.utils import dist

__all__ = ["log_config", "recipe_text"]


def log_config(logger: Logger, cfg: dict[str, Any]) -> None:
    """Prints a resolved recipe, and logs it as hyperparameters."""
    text = recipe_text(cfg)
    if dist.get_global_rank() == 0:
        print(text, flush=True)
    logger.log_hyperparameters(cfg)


def recipe_text(cfg: dict[str, Any]) -> str:
    """Returns a resolved recipe as YAML; what YAML cannot hold is text there."""
    return OmegaConf.to_yaml(OmegaConf.create(_plain(cfg)))


def _plain(value: Any) -> Any:
    """Containers that YAML can hold; braces of format strings are no interpolation there."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    warnings.warn(f"{value!r} is written to the recipe as text.", stacklevel=3)
    return str(value)
