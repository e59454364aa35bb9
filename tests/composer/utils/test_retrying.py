"""Trying again."""

import random
import time

import pytest

from composer.utils.retrying import retry


def test_until_it_works(monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    seen = []

    @retry(OSError, num_attempts=4, initial_backoff=1.0, max_jitter=0.5)
    def works_the_third_time(retry_index):
        seen.append(retry_index)
        if retry_index < 2:
            raise OSError
        return "done"

    state = random.getstate()
    assert works_the_third_time() == "done"
    assert seen == [0, 1, 2]
    assert 1 <= pauses[0] <= 1.5 and 2 <= pauses[1] <= 2.5
    assert random.getstate() == state, "waiting must not move the run's generator"


def test_the_last_error_is_raised(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    calls = []

    @retry
    def never():
        calls.append(1)
        raise KeyError(len(calls))

    with pytest.raises(KeyError, match="3"):
        never()


def test_other_errors_pass():
    calls = []

    @retry([OSError, KeyError])
    def other():
        calls.append(1)
        raise ValueError

    with pytest.raises(ValueError):
        other()
    assert len(calls) == 1
    with pytest.raises(ValueError, match="at least 1"):
        retry(num_attempts=0)
