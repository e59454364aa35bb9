"""The Engine: who is called when, once, and in which order; and that everybody is closed."""

import gc
import signal
import subprocess
import sys
import textwrap
import time
import timeit
import weakref
from unittest.mock import MagicMock

import pytest
import torch

from composer.core import engine as engine_module
from composer.core.algorithm import Algorithm
from composer.core.callback import Callback
from composer.core.engine import Engine, sigterm_handler
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.logger_destination import LoggerDestination
from composer.core.state import State
from composer.devices.device_cpu import DeviceCPU


class Watcher(Callback):
    """Writes down everything that it is told."""

    def __init__(self, name, news):
        self.name, self.news = name, news

    def run_event(self, event, state, logger):
        self.news.append((self.name, event.value))

    def close(self, state, logger):
        self.news.append((self.name, "close"))

    def post_close(self):
        self.news.append((self.name, "post_close"))


class Destination(Watcher, LoggerDestination):
    def log_traces(self, traces):
        self.news.append((self.name, traces))


class Change(Algorithm):
    def __init__(self, name, news, events=tuple(Event)):
        self.name, self.news, self.events = name, news, events

    def __repr__(self):
        return f"Change({self.name})"

    def match(self, event, state):
        return event in self.events

    def apply(self, event, state, logger):
        self.news.append((self.name, event.value))
        return 7


class First(Change):
    run_order = "first"


class Last(Change):
    run_order = "last"


@pytest.fixture
def news():
    return []


@pytest.fixture
def make():
    made = []

    def build(callbacks=(), algorithms=(), destinations=(), passes=None):
        state = State(torch.nn.Linear(1, 1), 0, "run", DeviceCPU(), max_duration="1ep")
        state.callbacks = [*destinations, *callbacks]
        state.algorithms = algorithms
        state.set_dataloader([1], "train")
        engine = Engine(state, Logger(state, list(destinations)), passes)
        made.append(engine)
        return engine

    yield build
    for engine in made:
        engine.close()


def test_order_at_init_and_everywhere_else(make, news):
    engine = make(
        callbacks=[Watcher("callback 1", news), Watcher("callback 2", news)],
        algorithms=[Change("algorithm", news)],
        destinations=[Destination("logger", news)],
    )
    engine.run_event(Event.INIT)
    order = [name for name, what in news if what == "init"]
    assert order == ["logger", "callback 1", "callback 2", "algorithm"]
    for event in set(Event) - {Event.INIT}:
        news.clear()
        engine.run_event(event)
        order = [name for name, what in news if what == event.value]
        assert order == ["algorithm", "callback 1", "callback 2", "logger"], event


def test_traces(make, news):
    engine = make(
        algorithms=[Change("a", news), Change("b", news, ()), Change("c", news)],
        destinations=[Destination("logger", news)],
    )
    traces = engine.run_event("fit_start")
    assert list(traces) == ["Change(a)/Event.FIT_START", "Change(c)/Event.FIT_START"]
    trace = traces["Change(c)/Event.FIT_START"]
    assert (trace.name, trace.event, trace.exit_code, trace.order, trace.run) == (
        "Change",
        Event.FIT_START,
        7,
        1,
        True,
    )
    assert ("logger", {"algorithm_traces/Change/Event.FIT_START": 1}) in news
    assert engine.run_event(Event.FIT_END) is not None


def test_no_traces_are_logged_when_nothing_ran(make, news):
    engine = make(algorithms=[Change("a", news, ())], destinations=[Destination("logger", news)])
    assert not engine.run_event(Event.FIT_START)
    assert news == [("logger", "fit_start")]


def test_order_of_algorithms(make, news):
    algorithms = [Last("last", news), Change("a", news), First("first", news), Change("b", news)]
    engine = make(algorithms=algorithms)
    engine.run_event(Event.BEFORE_FORWARD)
    assert [name for name, _ in news] == ["first", "a", "b", "last"]
    news.clear()
    engine.run_event(Event.AFTER_FORWARD)
    assert [name for name, _ in news] == ["last", "b", "a", "first"]
    assert [algorithm.name for algorithm in engine.state.algorithms] == ["last", "a", "first", "b"]


def test_passes(make, news):
    def drop(algorithms, event):
        return [algorithm for algorithm in algorithms if algorithm.name != "a"]

    def backwards(algorithms, event):
        return list(reversed(algorithms))

    algorithms = [Change("a", news), Change("b", news), Change("c", news)]
    make(algorithms=algorithms, passes=[drop, (backwards, 0)]).run_event(Event.FIT_START)
    assert [name for name, _ in news] == ["c", "b"]
    engine = make(passes=(backwards, 0))
    assert engine.algorithm_passes[0] is backwards
    engine.register_pass(drop)
    assert engine.algorithm_passes[-1] is drop
    assert len(make(passes=drop).algorithm_passes) == len(engine.algorithm_passes) - 1
    for wrong in (3, [drop, 3], [(drop, "0")]):
        with pytest.raises(ValueError, match="invalid algorithm pass"):
            make(passes=wrong)


def test_only_those_who_answer_are_called(make):
    class Ends(Callback):
        def __init__(self):
            self.ends = 0

        def batch_end(self, state, logger):
            self.ends += 1

    callback = Ends()
    engine = make(callbacks=[callback])
    engine.run_event(Event.BATCH_START)
    engine.run_event(Event.BATCH_END)
    assert callback.ends == 1
    assert engine._listeners == {Event.BATCH_START: [], Event.BATCH_END: [callback]}


def test_callbacks_may_come_and_go(make, news):
    engine = make(callbacks=[Watcher("a", news)])
    engine.run_event(Event.FIT_START)
    engine.state.callbacks.append(Watcher("b", news))
    engine.run_event(Event.FIT_START)
    engine.state.callbacks = engine.state.callbacks[1:]
    engine.run_event(Event.FIT_START)
    assert [name for name, _ in news] == ["a", "a", "b", "b"]


def test_an_event_that_was_unheard_is_heard_by_who_comes_later(make, news):
    engine = make(callbacks=[Callback()])
    engine.run_event(Event.FIT_START)
    engine.run_event("fit_start")
    assert news == []
    engine.state.callbacks[0] = Watcher("callback", news)
    engine.run_event(Event.FIT_START)
    engine.state.callbacks.clear()
    engine.run_event(Event.FIT_START)
    engine.state.algorithms.append(Change("algorithm", news))
    engine.run_event(Event.FIT_START)
    assert [name for name, _ in news] == ["callback", "algorithm"]
    engine.state.algorithms.clear()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.run_event(Event.FIT_START)


def test_methods_of_one_object_count(make):
    class Plain(Callback):
        pass

    callback = Plain()
    callback.fit_start = MagicMock()
    engine = make(callbacks=[callback])
    engine.run_event(Event.FIT_START)
    callback.fit_start.assert_called_once_with(engine.state, engine.logger)


def test_close_is_once_in_reverse_and_final(make, news):
    engine = make(
        callbacks=[Watcher("1", news), Watcher("2", news)],
        destinations=[Destination("logger", news)],
    )
    engine.close()
    engine.close()
    assert news == [
        ("2", "close"),
        ("1", "close"),
        ("logger", "close"),
        ("2", "post_close"),
        ("1", "post_close"),
        ("logger", "post_close"),
    ]
    with pytest.raises(RuntimeError, match="engine was closed"):
        engine.run_event(Event.INIT)


def test_close_goes_on_after_an_error(make, news, caplog):
    class Breaks(Watcher):
        def close(self, state, logger):
            raise KeyError("broken")

    broken = Breaks("broken", news)
    engine = make(callbacks=[Watcher("1", news), broken, Watcher("2", news)])
    engine.run_event(Event.INIT)
    news.clear()
    engine.close()
    assert [entry for entry in news] == [
        ("2", "close"),
        ("1", "close"),
        ("2", "post_close"),
        ("1", "post_close"),
    ]
    assert "Breaks.close()" in caplog.text
    assert broken in engine_module._open_callbacks
    engine_module._open_callbacks.discard(broken)


def test_an_open_callback_serves_one_trainer(make, news):
    callback = Watcher("a", news)
    first = make(callbacks=[callback])
    first.run_event(Event.INIT)
    with pytest.raises(RuntimeError, match="open callback or logger from a previous trainer"):
        make(callbacks=[callback]).run_event(Event.INIT)
    first.close()
    make(callbacks=[callback]).run_event(Event.INIT)


def test_a_refused_engine_closes_nothing_of_the_run_that_goes_on(make, news):
    shared, own = Watcher("shared", news), Watcher("own", news)
    first = make(callbacks=[shared])
    first.run_event(Event.INIT)
    refused = make(callbacks=[shared, own])
    with pytest.raises(RuntimeError, match="open callback"):
        refused.run_event(Event.INIT)
    refused.close()
    assert news[1:] == [("own", "close"), ("own", "post_close")]
    first.close()
    assert news[3:] == [("shared", "close"), ("shared", "post_close")]


def test_b58_a_forgotten_engine_is_closed(make, news):
    state = State(torch.nn.Linear(1, 1), 0, "run", DeviceCPU(), callbacks=[Watcher("a", news)])
    engine = Engine(state, Logger(state))
    held = weakref.ref(engine)
    del engine
    gc.collect()
    assert held() is None
    assert news == [("a", "close"), ("a", "post_close")]


def test_events_need_a_dataloader_and_a_duration(make):
    engine = make()
    engine.state.set_dataloader()
    for event in (Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD, Event.EVAL_STANDALONE_END):
        engine.run_event(event)
    with pytest.raises(AssertionError):
        engine.run_event(Event.FIT_START)
    engine.state.set_dataloader([1], "x")
    engine.state.max_duration = None
    engine.run_event(Event.EVAL_START)
    engine.run_event(Event.PREDICT_START)
    with pytest.raises(AssertionError):
        engine.run_event(Event.FIT_START)


def test_the_profiler_gets_spans(make, news):
    spans = []

    class Marker:
        def __init__(self, name):
            self.name = name
            self.is_started = False

        def start(self):
            self.is_started = True
            spans.append(f"start {self.name}")

        def finish(self):
            self.is_started = False
            spans.append(f"finish {self.name}")

        def __enter__(self):
            self.start()

        def __exit__(self, *error):
            self.finish()

    engine = make(callbacks=[Watcher("a", news)], algorithms=[Change("b", news)])
    engine.state.profiler = MagicMock()
    markers = {}
    engine.state.profiler.marker.side_effect = lambda name, **settings: markers.setdefault(
        name, Marker(name)
    )
    engine.run_event(Event.AFTER_FORWARD)  # without a start: passed over
    engine.run_event(Event.BEFORE_FORWARD)
    engine.run_event(Event.AFTER_FORWARD)
    engine.run_marker_only_event(Event.BEFORE_DATALOADER)
    engine.run_marker_only_event(Event.AFTER_DATALOADER)
    assert [span for span in spans if "event/forward" in span or "dataloader" in span] == [
        "start event/forward",
        "finish event/forward",
        "start event/dataloader",
        "finish event/dataloader",
    ]
    assert "start algorithm/Change/event/before_forward" in spans
    assert "finish callback/Watcher/event/after_forward" in spans
    assert ("a", "after_dataloader") not in news
    spans.clear()
    engine.run_marker_only_event(Event.BEFORE_FORWARD)
    engine.run_marker_only_event(Event.BEFORE_FORWARD)  # an error left it open
    assert spans == [f"{what} event/forward" for what in ("start", "finish", "start")]
    engine.state.profiler = None
    engine.run_marker_only_event(Event.AFTER_DATALOADER)


def test_debug_log(make, monkeypatch, caplog):
    monkeypatch.setenv("ENGINE_DEBUG", "1")
    caplog.set_level("DEBUG", logger="composer.core.engine")
    make(callbacks=[Watcher("a", [])]).run_event(Event.FIT_START)
    assert "Event.FIT_START" in caplog.text and "Watcher" in caplog.text


def test_workers_are_stopped(make):
    engine = make()
    loader = MagicMock()
    engine.state.train_dataloader = loader
    engine.close()
    loader._iterator._shutdown_workers.assert_called_once_with()


def test_signals_are_handled_only_while_an_engine_is_open(make):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    first, second = make(), make()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    first.close()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    second.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(SystemExit) as left:
        sigterm_handler(15, None)
    assert left.value.code == 143


def test_a_handler_of_the_program_is_left_alone(make):
    def own(number, frame):
        pass

    before = signal.signal(signal.SIGTERM, own)
    try:
        make().close()
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


PROGRAM = """
import sys, time
import torch
from composer.core.callback import Callback
from composer.core.engine import Engine
from composer.core.logger import Logger
from composer.core.state import State
from composer.devices.device_cpu import DeviceCPU

class Closes(Callback):
    def close(self, state, logger):
        print("closed", flush=True)

state = State(torch.nn.Linear(1, 1), 0, "run", DeviceCPU(), callbacks=[Closes()])
engine = Engine(state, Logger(state))
if sys.argv[1] == "error":
    raise KeyError("an error in training")
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how, code", [("error", 1), ("SIGTERM", 143), ("SIGINT", 130)])
def test_everybody_is_closed_however_the_process_ends(how, code):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if how != "error":
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(getattr(signal, how))
    out, _ = process.communicate(timeout=60)
    assert out == "closed\n"
    assert process.returncode == code


def test_an_unheard_event_is_cheap(make):
    engine = make(callbacks=[Callback() for _ in range(1000)])
    engine.run_event(Event.BEFORE_FORWARD)
    runs = timeit.repeat(lambda: engine.run_event(Event.BEFORE_FORWARD), number=100, repeat=20)
    assert min(runs) / 100 < 4e-6  # it does not look at each of the callbacks again
