"""The three kinds of column of character-separated shards."""

from typing import Any

_types: dict[str, type] = {"str": str, "int": int, "float": float}


def is_xsv_encoding(encoding: str) -> bool:
    """Whether a column may have this encoding."""
    return encoding in _types


def _type_of(encoding: str) -> type:
    if encoding not in _types:
        raise ValueError(f"Unsupported encoding: {encoding}. Choose one of {sorted(_types)}.")
    return _types[encoding]


def xsv_encode(encoding: str, value: Any) -> str:
    """Text of a value; an int is no float."""
    kind = _type_of(encoding)
    if not isinstance(value, kind):
        raise AttributeError(f"data should be of type {kind}, but instead, found as {type(value)}")
    return str(value)


def xsv_decode(encoding: str, value: str) -> Any:
    """The value of a text."""
    return _type_of(encoding)(value)
