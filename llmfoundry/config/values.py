"""Whether the values of a recipe are of the kinds that its schema names."""

import dataclasses
import types
import typing
from typing import Any

from llmfoundry.config.problems import Problems

__all__ = ["check_values"]


def check_values(cfg: dict[str, Any], schema: type, problems: Problems) -> None:
    """Notes settings that are missing, and settings whose value is of another kind."""
    hints = typing.get_type_hints(schema)
    for each in dataclasses.fields(schema):
        if each.name not in cfg:
            if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
                problems.add(each.name, "missing; every recipe needs it.")
            continue
        value = cfg[each.name]
        fitted = _fit(value, hints[each.name])
        if fitted is _MISFIT:
            problems.add(
                each.name,
                f"must be {_describe(hints[each.name])}, got {value!r} ({type(value).__name__}).",
            )
        else:
            cfg[each.name] = fitted


_MISFIT = object()


def _fit(value: Any, hint: Any) -> Any:
    """Gives the value back, a whole float as int where only int is allowed, or ``_MISFIT``."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        plain = typing.get_origin(option) or option
        if option is Any or _is_a(value, plain):
            inner = typing.get_args(option)
            if plain is list and inner:
                misfits = [item for item in value if _fit(item, inner[0]) is _MISFIT]
                if misfits:
                    continue
            return value
    if int in options and isinstance(value, float) and value.is_integer():
        return int(value)
    return _MISFIT


def _is_a(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if kind is type(None) or kind is None:
        return value is None
    # True is an int to Python, but never what somebody means by a number.
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, (int, float))
    return isinstance(value, kind)


def _describe(hint: Any) -> str:
    words = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        dict: "a mapping",
        list: "a list",
        type(None): "null",
    }
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    named = []
    for option in options:
        plain = typing.get_origin(option) or option
        word = words.get(plain, str(plain))
        inner = typing.get_args(option)
        if plain is list and inner and inner[0] is not Any:
            inner_plain = typing.get_origin(inner[0]) or inner[0]
            word = f"a list (each item {words.get(inner_plain, inner_plain)})"
        named.append(word)
    return " or ".join(named)
