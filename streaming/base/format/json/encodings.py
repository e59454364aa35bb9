"""The three kinds of column of JSON shards."""

from typing import Any

_types: dict[str, type] = {"str": str, "int": int, "float": float}


def is_json_encoding(encoding: str) -> bool:
    """Whether a column may have this encoding."""
    return encoding in _types


def is_json_encoded(encoding: str, value: Any) -> bool:
    """Whether the value is of the encoding's type; an int is no float."""
    if encoding not in _types:
        raise ValueError(f"Unsupported encoding: {encoding}. Choose one of {sorted(_types)}.")
    return isinstance(value, _types[encoding])
