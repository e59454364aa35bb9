"""A list that counts its changes, so that what was derived from it is renewed when it must be."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_CHANGING = (
    "__delitem__",
    "__iadd__",
    "__imul__",
    "__setitem__",
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "remove",
    "reverse",
    "sort",
)


class WatchedList(list[T]):
    """A list whose ``changes`` says how often it was changed: comparing that is cheap."""

    changes: int = 0


def _counting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def counted(self: WatchedList[Any], *args: Any, **kwargs: Any) -> Any:
        self.changes += 1
        return method(self, *args, **kwargs)

    return counted


for _name in _CHANGING:
    setattr(WatchedList, _name, _counting(getattr(list, _name)))
