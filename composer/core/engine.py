"""The Engine: calls everybody at every event, in one order, and closes everybody at the end.

Its promise:

- At ``Event.INIT`` loggers come first, then callbacks, then algorithms, so that the first metric
  finds its loggers. At every other event algorithms come first, then callbacks, then loggers, so
  that whoever watches sees what was changed. Within a kind the order of ``state.callbacks`` holds.
- Algorithms run if they ``match``; the passes order them. At after-events they run in reverse.
- An error of an algorithm or a callback ends the run; one of a logger, once work has started, is
  warned about once.
- Every callback is closed exactly once, in reverse order (loggers, which stand in front, last),
  even after an error, at the latest when the process exits.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeAlias

from composer.core._signals import exit_on_signal, install_handlers, restore_handlers
from composer.core.algorithm import Algorithm
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.logger import Logger, tell
from composer.core.logger_destination import LoggerDestination
from composer.core.passes import DEFAULT_PASSES, AlgorithmPass
from composer.core.state import State
from composer.utils.iter_helpers import ensure_tuple
from composer.utils.misc import is_notebook

__all__ = ["Engine", "Trace", "Traces", "sigterm_handler", "stop_workers"]

log = logging.getLogger(__name__)

_WITHOUT_DATALOADER = frozenset(
    {
        Event.INIT,
        Event.BEFORE_LOAD,
        Event.AFTER_LOAD,
        Event.EVAL_STANDALONE_START,
        Event.EVAL_STANDALONE_END,
    }
)
_OF_TRAINING = frozenset(
    event
    for event in Event
    if not (event.is_eval or event.is_predict)
    and event not in (Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD)
)
# What a logger cannot do now it will never do: its user must know before the run starts.
_BEFORE_WORK = frozenset({Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD})
_RECORDED_ALWAYS = frozenset({Event.INIT, Event.FIT_START, Event.EPOCH_START, Event.EPOCH_END})

_open_callbacks: weakref.WeakSet[Any] = weakref.WeakSet()


def sigterm_handler(signal: int, frame: FrameType | None) -> None:
    """Leaves the process in order, with the exit code of the signal."""
    exit_on_signal(signal, frame)


@dataclass
class Trace:
    """What one algorithm did at one event."""

    name: str = ""
    """The algorithm's class."""
    event: Event | None = None
    """The event."""
    exit_code: int | None = None
    """What ``apply`` returned."""
    order: int | None = None
    """Its place among the algorithms that ran."""
    run: bool = False
    """Whether it ran."""


Traces: TypeAlias = "OrderedDict[str, Trace]"


class Engine:
    """Calls algorithms, callbacks and loggers at every event.

    While an Engine is open, SIGTERM and SIGINT (not in a notebook) raise SystemExit, unless the
    program has handlers of its own, so that everything is closed before the process ends.

    Args:
        state: The run's state.
        logger: What the plug-ins log through.
        algorithm_passes: More passes to order algorithms with: a pass, a pair of a pass and its
            index among the passes, or a list of these.

    Raises:
        ValueError: If something is not a pass.
    """

    def __init__(
        self,
        state: State,
        logger: Logger,
        algorithm_passes: AlgorithmPass
        | tuple[AlgorithmPass, int]
        | Sequence[AlgorithmPass | tuple[AlgorithmPass, int]]
        | None = None,
    ) -> None:
        self.state = state
        self.logger = logger
        self.algorithm_passes: list[AlgorithmPass] = list(DEFAULT_PASSES)
        for algorithm_pass, index in _parse_passes(algorithm_passes):
            self.register_pass(algorithm_pass, index)
        self._debug = bool(os.environ.get("ENGINE_DEBUG"))
        self._listeners: dict[Event, list[Any]] = {}
        self._unheard: set[Event] = set()
        self._changes_known = 0  # of state.callbacks, when listeners and unheard were found
        self._is_closed = False
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()
        install_handlers(leave_interrupt=is_notebook())
        self._closer = weakref.finalize(self, _close, state, logger, self._opened)

    def register_pass(self, algorithm_pass: AlgorithmPass, index: int = -1) -> None:
        """Adds a pass at an index of the passes; at their end by default."""
        if index == -1:
            self.algorithm_passes.append(algorithm_pass)
        else:
            self.algorithm_passes.insert(index, algorithm_pass)

    def run_event(self, event: Event | str) -> Traces:
        """Calls everybody who answers the event.

        Returns:
            What each algorithm did that ran, by ``"<algorithm>/<event>"``.

        Raises:
            RuntimeError: If the engine is closed.
        """
        state, profiler = self.state, self.state.profiler
        if (  # most events of most runs: they must cost next to nothing
            event in self._unheard
            and state.callbacks.changes == self._changes_known
            and profiler is None
            and not state.algorithms
        ):
            return OrderedDict()
        event = self._checked(event)
        if profiler is not None and event.is_before_event:
            self._mark(event)
        if event is Event.INIT:
            self._open_callbacks()
            self._run_callbacks(event)
            traces = self._run_algorithms(event)
        else:
            traces = self._run_algorithms(event)
            self._run_callbacks(event)
        if profiler is not None and event.is_after_event:
            self._mark(event)
        return traces

    def run_marker_only_event(self, event: Event | str) -> None:
        """Lets only the profiler hear of the event: nothing happened, but a span ends."""
        event = self._checked(event)
        if self.state.profiler is not None and (event.is_before_event or event.is_after_event):
            self._mark(event)

    def close(self) -> None:
        """Closes every callback, once, in reverse order; errors are logged and stop nobody else."""
        self._is_closed = True
        self._unheard.clear()
        self._closer()

    def _checked(self, event: Event | str) -> Event:
        if not isinstance(event, Event):
            event = Event(event)
        if self._is_closed:
            raise RuntimeError(
                f"The engine was closed and can run no more events ({event}). Make a new Trainer"
            )
        if event not in _WITHOUT_DATALOADER:
            assert self.state.dataloader is not None, f"{event} needs state.set_dataloader first"
        if event in _OF_TRAINING:
            assert self.state.max_duration is not None, f"{event} needs state.max_duration"
        if self._debug:
            log.debug("[ep=%s][ba=%s][event=%s]", *_position(self.state), event)
        return event

    def _mark(self, event: Event) -> None:
        """Begins the profiler's span of a pair of events, or ends it."""
        assert self.state.profiler is not None
        marker = self.state.profiler.marker(
            f"event/{event.canonical_name}",
            always=event in _RECORDED_ALWAYS,
            categories=(event.value,),
        )
        if marker.is_started:  # it is not, at the end of an epoch that was resumed midway
            marker.finish()  # at a start: an error, or the end of training, left it open
        if event.is_before_event:
            marker.start()

    def _span(self, kind: str, plugin: object, event: Event) -> AbstractContextManager[Any]:
        """Returns the profiler's span of one plug-in at one event; nothing without a profiler."""
        if self.state.profiler is None:
            return nullcontext()
        return self.state.profiler.marker(
            f"{kind}/{type(plugin).__name__}/event/{event.value}",
            always=event in _RECORDED_ALWAYS,
            categories=(event.value, type(plugin).__name__),
        )

    def _run_algorithms(self, event: Event) -> Traces:
        traces: Traces = OrderedDict()
        state = self.state
        if not state.algorithms:
            return traces
        matching: Sequence[Algorithm] = [
            algorithm for algorithm in state.algorithms if algorithm.match(event, state)
        ]
        if not matching:
            return traces
        for algorithm_pass in self.algorithm_passes:
            matching = algorithm_pass(matching, event)
        for order, algorithm in enumerate(matching):
            if self._debug:
                log.debug("[event=%s][algorithm=%s]", event, algorithm)
            with self._span("algorithm", algorithm, event):
                exit_code = algorithm.apply(event, state, self.logger)
            traces[f"{algorithm}/{event}"] = Trace(
                name=type(algorithm).__name__,
                event=event,
                exit_code=exit_code,
                order=order,
                run=True,
            )
        self.logger.log_traces(
            {f"algorithm_traces/{trace.name}/{trace.event}": 1 for trace in traces.values()}
        )
        return traces

    def _run_callbacks(self, event: Event) -> None:
        for callback in self._listeners_of(event):
            if self._debug:
                log.debug("[event=%s][callback=%s]", event, type(callback).__name__)
            with self._span("callback", callback, event):
                if event in _BEFORE_WORK or not isinstance(callback, LoggerDestination):
                    callback.run_event(event, self.state, self.logger)
                else:
                    tell(callback, callback.run_event, event, self.state, self.logger)

    def _listeners_of(self, event: Event) -> list[Any]:
        """Returns who answers the event, in order; found once and kept until callbacks change."""
        callbacks = self.state.callbacks
        if callbacks.changes != self._changes_known:
            self._changes_known = callbacks.changes
            self._listeners.clear()
            self._unheard.clear()
        listeners = self._listeners.get(event)
        if listeners is None:
            answering = [callback for callback in callbacks if _answers(callback, event)]
            loggers = [one for one in answering if isinstance(one, LoggerDestination)]
            others = [one for one in answering if not isinstance(one, LoggerDestination)]
            listeners = loggers + others if event is Event.INIT else others + loggers
            self._listeners[event] = listeners
            if not (listeners or self._debug):
                self._unheard.add(event)
        return listeners

    def _open_callbacks(self) -> None:
        """Marks the callbacks as in use, so that no two trainers share one that is open."""
        for callback in self.state.callbacks:
            if callback in _open_callbacks:
                raise RuntimeError(
                    "Cannot create a new trainer with an open callback or logger from a previous "
                    f"trainer: {type(callback).__name__}. Call trainer.close() on the previous "
                    "trainer first"
                )
        _open_callbacks.update(self.state.callbacks)
        self._opened.update(self.state.callbacks)


def _answers(callback: Any, event: Event) -> bool:
    """Tells whether a callback does anything at an event."""

    def is_overridden(name: str) -> bool:
        return getattr(getattr(callback, name), "__func__", None) is not getattr(Callback, name)

    return is_overridden("run_event") or is_overridden(event.value)


def _parse_passes(passes: Any) -> list[tuple[Any, int]]:
    if isinstance(passes, tuple) and len(passes) == 2 and isinstance(passes[1], int):
        passes = [passes]
    parsed: list[tuple[Any, int]] = []
    for entry in ensure_tuple(passes):
        algorithm_pass, index = (
            entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, -1)
        )
        if not callable(algorithm_pass) or not isinstance(index, int):
            raise ValueError(
                f"Received invalid algorithm pass {entry!r}: a pass is a function of (algorithms, "
                "event), or a pair of one and its index"
            )
        parsed.append((algorithm_pass, index))
    return parsed


def _position(state: State) -> tuple[int, int]:
    return state.timestamp.epoch.value, state.timestamp.batch.value


def _close(state: State, logger: Logger, opened: weakref.WeakSet[Any]) -> None:
    """Closes the callbacks of a run: first all of them, then the resources of those that could.

    One that another run has open, so that INIT was refused, is that run's to close.
    """
    closed = []
    for callback in reversed(state.callbacks):
        if callback in _open_callbacks and callback not in opened:
            continue
        if _succeeds(lambda callback=callback: callback.close(state, logger), callback, "close"):
            closed.append(callback)
    for callback in closed:
        if _succeeds(callback.post_close, callback, "post_close"):
            _open_callbacks.discard(callback)
    stop_workers(state.train_dataloader)
    restore_handlers()


def _succeeds(action: Callable[[], None], callback: object, name: str) -> bool:
    try:
        action()
    except Exception as error:  # whatever a plug-in raises must not keep the others open
        log.error("Error running %s.%s(): %s", type(callback).__name__, name, error, exc_info=error)
        return False
    return True


def stop_workers(dataloader: Any) -> None:
    """Stops the worker processes of a torch DataLoader that is not read any more."""
    iterator = getattr(dataloader, "_iterator", None)
    stop = getattr(iterator, "_shutdown_workers", None)
    if stop is not None:
        stop()
