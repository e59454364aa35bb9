"""Algorithms that act on single images, in the workers of the dataloader."""

import weakref
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils.misc import add_vision_dataset_transform


class DatasetTransform(Algorithm):
    """Adds a transform of Pillow images to each dataset that is trained on, once."""

    def __init__(self) -> None:
        self._transformed: weakref.WeakSet[Any] = weakref.WeakSet()

    @abstractmethod
    def make_transform(self) -> Callable[[Any], Any]:
        """Returns the transform of one image."""

    def match(self, event: Event, state: State) -> bool:
        """Matches when training starts on a dataset that has no such transform yet."""
        dataset = getattr(state.dataloader, "dataset", None)
        return event == Event.FIT_START and dataset not in self._transformed

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Adds the transform, before the one that makes tensors of images.

        Raises:
            TypeError: If there is no dataset with a ``transform``.
        """
        name = type(self).__name__
        loader = state.dataloader
        if not isinstance(loader, DataLoader):
            raise TypeError(
                f"{name} adds a transform to the dataset of a torch DataLoader, and this one is "
                f"{type(loader).__name__}; use the functional form in your own pipeline"
            )
        if not hasattr(loader.dataset, "transform"):
            raise TypeError(
                f"{name} adds a transform to a dataset with an attribute `transform`, as those of "
                f"torchvision have it, and {type(loader.dataset).__name__} has none; use the "
                "transform in your own dataset"
            )
        add_vision_dataset_transform(loader.dataset, self.make_transform())
        self._transformed.add(loader.dataset)
        return None
