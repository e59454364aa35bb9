"""What core asks of the things that stand above it: plug-ins, models and the profiler, by shape.

State holds objects whose classes are defined on higher floors, and must not import them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from composer.core.event import Event

RunOrder = Literal["first", "middle", "last"]


class SerializableLike(Protocol):
    """Has a state for the checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """Returns what the checkpoint must keep."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Takes back what `state_dict` returned."""
        ...


class AlgorithmLike(SerializableLike, Protocol):
    """Changes training."""

    run_order: ClassVar[RunOrder]

    def match(self, event: Event, state: Any) -> bool:
        """Says whether to apply it at this event."""
        ...

    def apply(self, event: Event, state: Any, logger: Any) -> int | None:
        """Changes the state."""
        ...


class CallbackLike(SerializableLike, Protocol):
    """Watches training."""

    def run_event(self, event: Event, state: Any, logger: Any) -> None:
        """Hears of an event."""
        ...

    def close(self, state: Any, logger: Any) -> None:
        """Finishes its work while the others still live."""
        ...

    def post_close(self) -> None:
        """Frees what it holds."""
        ...


class DestinationLike(CallbackLike, Protocol):
    """Carries news out."""

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Takes the traces of algorithms."""
        ...

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Takes hyperparameters."""
        ...

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Takes metrics of a step."""
        ...

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = ..., step: int | None = None
    ) -> None:
        """Takes a table."""
        ...

    def log_images(
        self,
        images: Any,
        name: str = ...,
        channels_last: bool = ...,
        step: int | None = None,
        masks: dict[str, Any] | None = None,
        mask_class_labels: dict[int, str] | None = None,
        use_table: bool = ...,
    ) -> None:
        """Takes images."""
        ...

    def log_distribution(self, name: str, values: Any, step: int | None = None) -> None:
        """Takes the values of a histogram."""
        ...

    def upload_file(
        self, state: Any, remote_file_name: str, file_path: Path, *, overwrite: bool
    ) -> None:
        """Takes a file to keep elsewhere."""
        ...

    def upload_last(
        self,
        state: Any,
        after: Sequence[str],
        index: tuple[str, Path],
        pointer: tuple[str, Path] | None,
    ) -> None:
        """Takes what makes the files of all ranks a checkpoint."""
        ...

    def can_upload_files(self) -> bool:
        """Says whether `upload_file` does anything."""
        ...

    def path_placeholders(self) -> dict[str, str]:
        """Returns what it can fill into paths."""
        ...


class EvaluatorLike(Protocol):
    """A dataset to evaluate on, and when."""

    label: str
    dataloader: Any
    metric_names: list[str]
    subset_num_batches: int | None
    device_eval_microbatch_size: Any


class MarkerLike(Protocol):
    """One named span of a profile."""

    is_started: bool

    def start(self) -> None:
        """Begins the span."""
        ...

    def finish(self) -> None:
        """Ends the span."""
        ...

    def __enter__(self) -> Any: ...

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> Any: ...


class ProfilerLike(Protocol):
    """Records spans of time."""

    def marker(
        self,
        name: str,
        *,
        always: bool = False,
        record_instant_on_start: bool = False,
        record_instant_on_finish: bool = False,
        categories: Sequence[str] | Callable[[], list[str]] = (),
    ) -> MarkerLike:
        """Returns the marker of that name; ``always`` records it in skipped batches too."""
        ...


@runtime_checkable
class DescribesItself(Protocol):
    """A model that puts its configuration and tokenizer into the checkpoint."""

    def get_metadata(self) -> dict[str, Any]:
        """Returns what is kept under ``integrations/huggingface``."""
        ...


@runtime_checkable
class SavesCheckpoints(Protocol):
    """A callback that saves checkpoints, and says when."""

    save_interval: Callable[[Any, Event], bool]


@runtime_checkable
class KeepsCheckpoints(SavesCheckpoints, Protocol):
    """A callback whose folder a run resumes from."""

    folder: str
    filename: Any
    latest_filename: Any
    """The name of the link to the newest checkpoint; None if there is none."""
    overwrite: bool
    saved_checkpoints: list[str]


@runtime_checkable
class DividesBatches(Protocol):
    """An algorithm that has loaded batches trained on in several optimizer steps."""

    def steps_in_batch(self, state: Any) -> int:
        """Returns how many steps the current batch is for."""
        ...

    def lr_factor(self, steps: int) -> float:
        """Returns what learning rates are multiplied by while there are so many steps."""
        ...


class ScalerLike(SerializableLike, Protocol):
    """Scales the loss so that half-precision gradients do not vanish."""

    def get_scale(self) -> float:
        """Returns the factor."""
        ...


NoContext = AbstractContextManager[None]
