"""Leaving parts of a state out by glob."""

from typing import Any

import pytest

from composer.checkpoint.content import apply_ignore_keys, glob_filter


def content() -> dict[str, Any]:
    return {
        "state": {
            "model": {"layer1.weight": 1, "layer1.bias": 2, "layer2.weight": 3},
            "optimizers": {"Adam": {"param_groups": [{"lr": 1}, {"lr": 2}, {"lr": 3}]}},
            "algorithms": [("BlurPool", {"repr": "x"})],
        },
        "rng": [0, 1, 2],
    }


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        (["state/model/layer1.*"], {"model": {"layer2.weight": 3}}),
        (["state/model/layer*.weight"], {"model": {"layer1.bias": 2}}),
        (["state/model"], {"model": None}),
        (["state/mod*", "rng"], {"model": None, "rng": None}),
        (["rng/0", "rng/2"], {"rng": [1]}),
        (
            ["state/optimizers/Adam/param_groups/1"],
            {"optimizers": {"Adam": {"param_groups": [{"lr": 1}, {"lr": 3}]}}},
        ),
        (["state/algorithms/0/1/repr"], {"algorithms": [("BlurPool", {})]}),
    ],
)
def test_glob_filter(globs: list[str], expected: dict[str, Any]) -> None:
    state = content()
    apply_ignore_keys(state, globs)
    wanted = content()
    for key, value in expected.items():
        where = wanted if key == "rng" else wanted["state"]
        if value is None:
            del where[key]
        else:
            where[key] = value
    assert state == wanted


def test_star_takes_everything() -> None:
    state = content()
    glob_filter(["*"])(state)
    assert state == {}


def test_a_glob_that_fits_nothing_is_named() -> None:
    state = content()
    with pytest.warns(UserWarning, match=r"fits the ignore keys \['state/modle'\]"):
        glob_filter(["state/modle", "rng"])(state)
    assert "rng" not in state


def test_function_or_nothing() -> None:
    state = content()
    apply_ignore_keys(state, None)
    apply_ignore_keys(state, [])
    assert state == content()
    apply_ignore_keys(state, lambda whole: whole.pop("rng"))
    assert "rng" not in state
