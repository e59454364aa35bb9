"""A callback that is given the whole configuration of the run."""

from abc import abstractmethod
from typing import Any

from composer.core.callback import Callback

__all__ = ["CallbackWithConfig"]


class CallbackWithConfig(Callback):
    """Watches training, and knows how the run was configured.

    Args:
        train_config: The run's configuration, as it was logged.
        *args: What the subclass takes.
        **kwargs: What the subclass takes.
    """

    @abstractmethod
    def __init__(self, train_config: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
