"""Loads another checkpoint at an event of the run."""

from collections.abc import Callable
from typing import Any

from composer.checkpoint.whole_run import load_checkpoint
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.model_state import whole_model_wanted
from composer.core.state import State
from composer.utils.file_helpers import maybe_create_object_store_from_uri, parse_uri


class LoadCheckpoint(Callback):
    """Loads a checkpoint at an event, for example base weights before those of an adapter.

    It is one of the few callbacks that change the run.

    Args:
        load_path: The checkpoint's path or address; ``{run_name}`` is filled in.
        load_weights_only: Load the weights only.
        strict_model_weights: Refuse missing and unexpected weights.
        ignore_keys: What not to load: globs of ``/``-joined paths, or a function that changes the
            content in place.
        event: The event, or its name.
    """

    def __init__(
        self,
        load_path: str,
        load_weights_only: bool = False,
        strict_model_weights: bool = True,
        ignore_keys: list[str] | Callable[[dict[str, Any]], None] | None = None,
        event: str | Event = Event.BEFORE_LOAD,
    ) -> None:
        self.load_path = load_path
        self.load_object_store = maybe_create_object_store_from_uri(load_path)
        self.parsed_path = parse_uri(load_path)[2]
        self.load_weights_only = load_weights_only
        self.strict_model_weights = strict_model_weights
        self.ignore_keys = ignore_keys
        self.event = Event(event)

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """Loads, if it is the event."""
        super().run_event(event, state, logger)
        if event != self.event:
            return
        with whole_model_wanted(state.model):
            load_checkpoint(
                path=self.parsed_path,
                state=state,
                logger=logger,
                object_store=self.load_object_store,
                load_weights_only=self.load_weights_only,
                strict_model_weights=self.strict_model_weights,
                ignore_keys=self.ignore_keys,
            )
