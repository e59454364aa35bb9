"""Hyperparameters from local variables, flat and nested."""

import pytest

from composer.utils.auto_log_hparams import (
    convert_flat_dict_to_nested_dict,
    convert_nested_dict_to_flat_dict,
    extract_hparams,
)


def test_extraction():
    class Thing:
        pass

    class Known:
        def __init__(self):
            self.local_hparams = {"a": 1}

    found = extract_hparams(
        {
            "self": 1,
            "_hidden": 1,
            "cls": Thing,
            "n": None,
            "x": 1.5,
            "thing": Thing(),
            "known": Known(),
            "items": [Thing(), 1],
            "nested": {"k": Thing()},
            "fn": len,
        }
    )
    assert found == {
        "n": None,
        "x": 1.5,
        "thing": "Thing",
        "known": {"Known": {"a": 1}},
        "items": ["Thing", 1],
        "nested": {"k": "Thing"},
        "fn": "len",
    }


def test_flat_and_nested():
    nested = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    flat = {"a/b": 1, "a/c/d": 2, "e": 3}
    assert convert_nested_dict_to_flat_dict(nested) == flat
    assert convert_flat_dict_to_nested_dict(flat) == nested
    with pytest.raises(ValueError, match="already has a value"):
        convert_flat_dict_to_nested_dict({"a": 1, "a/b": 2})
