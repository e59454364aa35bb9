from types import SimpleNamespace

import pytest

from composer.profiler import ProfilerAction, cyclic_schedule

LETTERS = {
    ProfilerAction.SKIP: "-",
    ProfilerAction.WARMUP: "w",
    ProfilerAction.ACTIVE: "a",
    ProfilerAction.ACTIVE_AND_SAVE: "S",
}


def actions(schedule, length=10, resumed_at=0, known_length=None):
    return "".join(
        LETTERS[
            schedule(
                SimpleNamespace(
                    timestamp=SimpleNamespace(batch_in_epoch=batch),
                    epoch_length=known_length,
                    profiler=SimpleNamespace(resumption_batch_idx=resumed_at),
                )
            )
        ]
        for batch in range(length)
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "waaaS-----"),
        ({"repeat": 0}, "waaaSwaaaS"),
        ({"skip_first": 2, "wait": 1, "warmup": 1, "active": 2, "repeat": 2}, "---waS-waS"),
        ({"warmup": 0, "active": 1, "repeat": 3}, "SSS-------"),
        ({"warmup": 0, "active": 1000}, "aaaaaaaaaa"),
    ],
)
def test_cycles(settings, expected):
    assert actions(cyclic_schedule(**settings)) == expected


def test_the_end_of_an_epoch_saves():
    assert actions(cyclic_schedule(active=1000), known_length=10) == "waaaaaaaaS"


def test_a_resumed_epoch_counts_from_where_it_was_resumed():
    assert actions(cyclic_schedule(skip_first=1), resumed_at=3) == "----waaaS-"


@pytest.mark.parametrize("settings", [{"active": 0}, {"wait": -1}])
def test_bad_counts_are_refused(settings):
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        cyclic_schedule(**settings)
