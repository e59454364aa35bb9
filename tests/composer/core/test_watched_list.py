"""The list that counts its changes."""

import copy
import operator
import pickle

import pytest

from composer.core.watched_list import WatchedList

CHANGES = {
    "append": lambda items: items.append(4),
    "extend": lambda items: items.extend([4, 5]),
    "insert": lambda items: items.insert(0, 4),
    "remove": lambda items: items.remove(1),
    "pop": lambda items: items.pop(),
    "clear": lambda items: items.clear(),
    "sort": lambda items: items.sort(key=lambda item: -item),
    "reverse": lambda items: items.reverse(),
    "set": lambda items: operator.setitem(items, 0, 9),
    "set a slice": lambda items: operator.setitem(items, slice(None), [7, 8]),
    "delete": lambda items: operator.delitem(items, 0),
    "add in place": lambda items: operator.iadd(items, [4]),
    "multiply in place": lambda items: operator.imul(items, 2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_counted_and_made(name: str) -> None:
    watched, plain = WatchedList([3, 1, 2]), [3, 1, 2]
    assert watched.changes == 0
    CHANGES[name](watched)
    CHANGES[name](plain)
    assert watched == plain
    assert watched.changes == 1


def test_reading_is_no_change_and_copies_are_lists_again() -> None:
    watched = WatchedList([3, 1, 2])
    assert (sorted(watched), watched[1:], len(watched), watched.index(1)) == (
        [1, 2, 3],
        [1, 2],
        3,
        1,
    )
    assert watched.changes == 0
    assert pickle.loads(pickle.dumps(watched)) == copy.deepcopy(watched) == watched
