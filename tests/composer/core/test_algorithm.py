"""Algorithm and Callback: their defaults."""

import inspect

import pytest

from composer.core.algorithm import Algorithm, algorithm_class
from composer.core.callback import Callback
from composer.core.event import Event


def test_algorithm_defaults():
    class Nothing(Algorithm):
        def match(self, event, state):
            return False

        def apply(self, event, state, logger):
            return None

        def __repr__(self):
            return "Nothing()"

    algorithm = Nothing(1, two=3)
    assert not algorithm.find_unused_parameters
    assert not algorithm.backwards_create_graph
    assert not algorithm.required_on_load()
    assert algorithm.run_order == "middle"
    assert algorithm.state_dict() == {"repr": "Nothing()"}
    algorithm.load_state_dict({"repr": "Nothing()"})
    with pytest.raises(TypeError):
        Algorithm()


def test_algorithm_classes_are_known_by_name():
    class Known(Algorithm):
        pass

    assert algorithm_class(Known.__qualname__) is Known
    assert algorithm_class("Unknown") is None


def test_callback_methods():
    callback = Callback("any", thing=1)
    for event in Event:
        assert list(inspect.signature(getattr(callback, event.value)).parameters) == [
            "state",
            "logger",
        ]
        callback.run_event(event, None, None)
    callback.close(None, None)
    callback.post_close()
    assert callback.state_dict() == {}


def test_run_event_dispatches():
    heard = []

    class Hears(Callback):
        def fit_start(self, state, logger):
            heard.append((state, logger))

    Hears().run_event(Event.FIT_START, 1, 2)
    Hears().run_event(Event.FIT_END, 1, 2)
    assert heard == [(1, 2)]
