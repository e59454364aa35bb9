"""How destinations that write text render tables, hyperparameters and traces, and where to."""

import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from composer.core.logger import format_log_data_value


def table_to_json(columns: list[str], rows: list[list[Any]]) -> str:
    """Returns a table as compact JSON: ``{"columns": [...], "data": [[...], ...]}``."""
    table = {"columns": list(columns), "data": [list(row) for row in rows]}
    return json.dumps(table, separators=(",", ":"), default=_to_json_value)


def _to_json_value(value: Any) -> Any:
    """Numbers and arrays of numpy and torch as JSON; anything else as its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def config_lines(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Returns the hyperparameters as YAML between two rulers, line by line."""
    import yaml  # here, because only runs that print their configuration need it

    ruler = "*" * 30
    text = yaml.safe_dump(_to_plain(hyperparameters), sort_keys=True, allow_unicode=True)
    return [ruler, "Config:", *text.rstrip("\n").split("\n"), ruler]


def _to_plain(value: Any) -> Any:
    """What YAML can write; objects of other kinds as their text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item) for item in value]
    return str(value)


def trace_line(name: str, value: Any) -> str:
    """Returns the line that tells of one trace entry."""
    return f"[trace]: {name}:{format_log_data_value(value)}\n"


def get_stream(stream: str | TextIO) -> TextIO:
    """Returns the stream of that name (``"stdout"`` or ``"stderr"``), or the stream itself."""
    if not isinstance(stream, str):
        return stream
    if stream.lower() == "stdout":
        return sys.stdout
    if stream.lower() == "stderr":
        return sys.stderr
    raise ValueError(f"stream={stream!r} must be 'stdout', 'stderr' or an open text file.")
