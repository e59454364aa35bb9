"""What loggers that stand on somebody else's package share: importing it, ranks, conversions."""

import functools
import importlib
import logging
import re
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from composer.core.logger import Logger
from composer.core.logger_destination import LoggerDestination
from composer.core.state import State
from composer.utils import dist
from composer.utils.import_helpers import MissingConditionalImportError

log = logging.getLogger(__name__)

TMethod = TypeVar("TMethod", bound=Callable[..., Any])


def import_package(name: str, extra: str) -> Any:
    """Imports an optional package, or says which extra installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingConditionalImportError(extra, name.partition(".")[0]) from error


class ServiceLogger(LoggerDestination):
    """A logger whose news goes to a service: of rank 0 only, or of each rank under its own name.

    Args:
        rank_zero_only: Whether the other ranks stay silent.

    Raises:
        MissingConditionalImportError: If the service's package is not installed.
    """

    package: ClassVar[str]
    """The service's package."""
    extra: ClassVar[str]
    """The extra that installs it."""

    def __init__(self, rank_zero_only: bool = True) -> None:
        import_package(self.package, self.extra)
        self._enabled = not rank_zero_only or dist.get_global_rank() == 0
        self._is_of_one_rank = not rank_zero_only
        self._ended_well = True

    def fit_start(self, state: State, logger: Logger) -> None:
        """Remembers that training is under way: a run that closes now has failed."""
        self._ended_well = False

    def fit_end(self, state: State, logger: Logger) -> None:
        """Remembers that training came to its end."""
        self._ended_well = True

    @property
    def _service(self) -> Any:
        return import_package(self.package, self.extra)  # no attribute: modules cannot be pickled

    def _name_of_rank(self, run_name: str) -> str:
        return f"{run_name}-rank{dist.get_global_rank()}" if self._is_of_one_rank else run_name


def unless_silent(method: TMethod) -> TMethod:
    """Lets a method of a `ServiceLogger` do nothing on ranks that stay silent."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs) if self._enabled else None

    return call  # pyright: ignore[reportReturnType]: of the same signature, which wraps hands on


class ResumingServiceLogger(ServiceLogger):
    """A logger whose service can go on with an earlier run.

    Whether there is one is known once the checkpoint is loaded: the service's run starts at
    ``Event.AFTER_LOAD``, and what is logged before waits; without a Trainer, which fires that
    event, it starts when somebody asks for it, or at the end. The checkpoint of another run (by
    name) starts a new one. Subclasses give `_start`, `_identity` and `_finish`.
    """

    def __init__(self, rank_zero_only: bool = True) -> None:
        super().__init__(rank_zero_only)
        self._run: Any = None
        self._run_name = ""
        self._resumed: dict[str, Any] = {}
        self._waiting: list[Callable[[], object]] = []
        self._has_news = False

    def init(self, state: State, logger: Logger) -> None:
        """Takes the run's name."""
        del logger
        self._run_name = state.run_name

    def state_dict(self) -> dict[str, Any]:
        """Returns what names the service's run, so that a resumed run goes on with it."""
        if self._run is None:
            return {}
        rank = dist.get_global_rank()
        return {"run_name": self._run_name, "rank": rank, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the service's run, if it is of this run and rank."""
        mine = {"run_name": self._run_name, "rank": dist.get_global_rank()}
        if mine.items() <= state.items():
            self._resumed = state

    def after_load(self, state: State, logger: Logger) -> None:
        """Starts the service's run, and logs what waited for it."""
        self._begin()

    def post_close(self) -> None:
        """Sends the rest."""
        if self._has_news:  # which somebody logged without a Trainer
            self._begin()
        if self._run is not None:
            self._finish()

    def _begin(self) -> None:
        if self._enabled and self._run is None and self._run_name:
            self._run = self._start()
            for call in self._waiting:
                call()
            self._waiting.clear()

    def _when_started(self, call: Callable[[], object], is_news: bool = True) -> None:
        if self._run is not None:
            call()
        elif self._enabled:
            self._waiting.append(call)
            self._has_news |= is_news

    def _start(self) -> Any:
        raise NotImplementedError

    def _identity(self) -> dict[str, Any]:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError


def to_arrays(images: Any, channels_last: bool) -> list[np.ndarray]:
    """Returns images as arrays of shape (height, width) or (height, width, channels).

    Args:
        images: A tensor or array of shape HW, CHW or NCHW (HWC or NHWC), or a list of these.
        channels_last: Whether the last axis is the channels.
    """
    if isinstance(images, (list, tuple)):
        return [array for each in images for array in to_arrays(each, channels_last)]
    if isinstance(images, torch.Tensor):
        images = images.detach().cpu()
        images = (images.float() if images.is_floating_point() else images).numpy()
    array = np.asarray(images)
    if array.ndim == 2:
        return [array]
    if array.ndim == 3:
        return [array if channels_last else array.transpose(1, 2, 0)]
    if array.ndim == 4:
        return [each for image in array for each in to_arrays(image, channels_last)]
    raise ValueError(
        f"An image of shape {array.shape} cannot be shown: give height and width, with channels "
        "and a batch if there are any."
    )


def to_masks(masks: dict[str, Any] | None, num_images: int) -> list[dict[str, np.ndarray]]:
    """Returns the masks of each image, by name; they come as HW, NHW, N1HW or a list of these."""
    found: list[dict[str, np.ndarray]] = [{} for _ in range(num_images)]
    for name, batch in (masks or {}).items():
        each = batch if isinstance(batch, (list, tuple)) or batch.ndim > 2 else [batch]
        if len(each) != num_images:
            raise ValueError(
                f"{len(each)} masks {name!r} were given for {num_images} images; give one each."
            )
        for of_image, mask in zip(found, each, strict=True):
            of_image[name] = to_arrays(mask.squeeze(), True)[0]
    return found


def to_unit_range(image: np.ndarray) -> np.ndarray:
    """Returns an image whose floats are between 0 and 1; others are stretched to that."""
    if not np.issubdtype(image.dtype, np.floating):
        return image.astype(np.uint8)
    low, high = float(image.min()), float(image.max())
    if low >= 0 and high <= 1:
        return image
    return (image - low) / ((high - low) or 1.0)


def to_vector(values: Any) -> np.ndarray:
    """Returns all values of a tensor or array in one dimension."""
    return to_arrays(values.reshape(1, -1), True)[0].ravel()


def to_numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Returns the metrics that are one number each; others no chart can show."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, str):
            continue
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, RuntimeError):  # such as a tensor of several values
            log.debug("%s is left out: %r is no single number", name, value)
    return numbers


def to_plain(value: Any) -> Any:
    """Returns a cell of a table as something that JSON knows."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return value.tolist() if hasattr(value, "tolist") else str(value)


def cleaned(name: str, allowed: str) -> str:
    """Returns a name with ``.`` in place of each character that is not in ``allowed``."""
    return re.sub(f"[^{allowed}]", ".", name)
