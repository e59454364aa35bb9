"""Which columns are taken, and under which names."""

from typing import Any

import pytest

from streaming.base.format.columns import Columns

PRESENT = {"content": "str", "n": "int"}


@pytest.mark.parametrize(
    ("wanted", "sample"),
    [
        (None, {"content": "a", "n": 1}),
        (["n"], {"n": 1}),
        ({"text": "content", "n": "n"}, {"text": "a", "n": 1}),
    ],
)
def test_columns_are_chosen_and_renamed(wanted: Any, sample: dict[str, Any]) -> None:
    columns = Columns(wanted)
    columns.check(PRESENT, "a file")
    assert columns.select({"content": "a", "n": 1}) == sample
    assert list(columns.encodings(PRESENT)) == list(sample)
    assert columns.missing({"content": "a"}) == (None if wanted is None else "n")
    columns.keep(("text", "n"), PRESENT, "a file")
    assert list(columns.encodings(PRESENT)) == [name for name in sample if name != "content"]


def test_what_is_refused() -> None:
    for wanted in ("content", [], {}):
        with pytest.raises(ValueError, match="`columns` must be a list of names"):
            Columns(wanted)
    with pytest.raises(ValueError, match=r"a file has no column 'x'; it has \['content', 'n'\]"):
        Columns({"text": "x"}).check(PRESENT, "a file")
    with pytest.raises(ValueError, match=r"no column text or body.*`columns: \{text: content\}`"):
        Columns(None).keep(("text", "body"), PRESENT, "a file")
