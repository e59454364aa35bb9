"""Lazy rows: names that are imported at first use, and the face of composer.utils."""

import importlib

import pytest

import composer.utils
from composer.utils.lazy import handed_on


def test_names_are_imported_at_first_use():
    get = handed_on({"pi": "math", "tau2": "math:tau", "numbers": "numbers:"})
    assert get("pi") == pytest.approx(3.14159, abs=1e-4)
    assert get("tau2") == get("tau2") > 6
    assert get("numbers") is importlib.import_module("numbers")
    with pytest.raises(AttributeError):
        get("other")


def test_every_public_name_of_the_face_is_there():
    for name in composer.utils.__all__:
        assert getattr(composer.utils, name) is not None
    assert list(composer.utils.__all__) == sorted(
        composer.utils.__all__, key=lambda n: (not n.isupper(), n[0].islower(), n)
    )


def test_old_path_of_the_interval_scheduler():
    from composer.core.intervals import create_interval_scheduler
    from composer.utils.misc import create_interval_scheduler as old

    assert old is create_interval_scheduler is composer.utils.create_interval_scheduler
