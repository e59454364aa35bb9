from types import SimpleNamespace

import pytest

from composer.core.time import Timestamp
from composer.profiler.marker import Marker
from composer.profiler.trace_handler import TraceHandler


class Notes(TraceHandler):
    def __init__(self):
        self.notes = []

    def process_duration_event(self, name, categories, is_start, timestamp, wall_clock_time_ns):
        assert categories == ["c"] and int(timestamp.batch) == 0 and wall_clock_time_ns > 1e18
        self.notes.append(("start" if is_start else "finish", name))

    def process_instant_event(self, name, categories, timestamp, wall_clock_time_ns):
        self.notes.append(("instant", name))

    def process_counter_event(self, name, categories, timestamp, wall_clock_time_ns, values):
        self.notes.append((values, name))


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture
def make(notes):
    state = SimpleNamespace(timestamp=Timestamp(), records=True)

    def make(instant=False, categories=("c",)):
        return Marker(
            state, lambda state: state.records, [notes], "m", instant, instant, categories
        )

    return make


def test_spans_moments_and_numbers(make, notes):
    marker = make(instant=True)
    marker.start()
    marker.counter({"n": 1})
    marker.finish()
    marker.instant()
    assert [what for what, _ in notes.notes] == [
        "instant",
        "start",
        {"n": 1},
        "instant",
        "finish",
        "instant",
    ]


def test_misuse_is_refused(make):
    marker = make()
    with pytest.raises(RuntimeError, match="'m' was finished before"):
        marker.finish()
    marker.start()
    with pytest.raises(RuntimeError, match="'m' was started twice"):
        marker.start()


def test_context_and_decorator(make, notes):
    marker = make(categories=lambda: ["c"])
    with marker, pytest.raises(RuntimeError):
        marker.start()

    @marker
    def factorial(n):
        """Multiplies."""
        return n * factorial(n - 1) if n else 1

    assert factorial(2) == 2 and factorial.__doc__ == "Multiplies."
    assert [what for what, _ in notes.notes] == ["start", "finish"] + ["start"] * 3 + ["finish"] * 3
    assert marker() is marker


def test_a_span_is_recorded_whole_or_not_at_all(make, notes):
    marker = make()
    marker.state.records = False
    marker.start()
    marker.state.records = True
    marker.finish()
    assert notes.notes == []
    marker.start()
    marker.state.records = False
    marker.finish()
    marker.instant()
    marker.counter({"n": 1})
    assert notes.notes == [("start", "m"), ("finish", "m")]
