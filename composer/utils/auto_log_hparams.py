"""Hyperparameters out of a constructor's local variables, flat or nested."""

from __future__ import annotations

import inspect
from typing import Any


def extract_hparams(locals_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns what can be logged of a constructor's ``locals()``.

    Names that start with ``_``, ``self`` and classes are left out; an object with ``local_hparams``
    is expanded into them; any other object is logged as its class name.
    """
    hparams: dict[str, Any] = {}
    for name, value in locals_dict.items():
        if name.startswith("_") or name == "self" or inspect.isclass(value):
            continue
        hparams[name] = _hparam_of(value)
    return hparams


def _hparam_of(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_hparam_of(item) for item in value]
    if isinstance(value, dict):
        return {key: _hparam_of(item) for key, item in value.items()}
    if hasattr(value, "local_hparams"):
        return {type(value).__name__: value.local_hparams}
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__name__
    return type(value).__name__


def convert_nested_dict_to_flat_dict(
    nested_dict: dict[str, Any], prefix: str = ""
) -> dict[str, Any]:
    """Joins the keys of nested dictionaries with ``/``.

    >>> convert_nested_dict_to_flat_dict({"a": {"b": 1}})
    {'a/b': 1}
    """
    flat: dict[str, Any] = {}
    for key, value in nested_dict.items():
        path = f"{prefix}/{key}" if prefix else key
        if isinstance(value, dict):
            flat.update(convert_nested_dict_to_flat_dict(value, path))
        else:
            flat[path] = value
    return flat


def convert_flat_dict_to_nested_dict(flat_dict: dict[str, Any]) -> dict[str, Any]:
    """Splits keys at ``/`` into nested dictionaries.

    >>> convert_flat_dict_to_nested_dict({"a/b": 1})
    {'a': {'b': 1}}
    """
    nested: dict[str, Any] = {}
    for path, value in flat_dict.items():
        *parents, last = path.split("/")
        inner = nested
        for key in parents:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{path!r} nests under {key!r}, which already has a value")
        inner[last] = value
    return nested
