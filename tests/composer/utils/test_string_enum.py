"""StringEnum: every way to write a member."""

import pytest

from composer.utils.string_enum import StringEnum


class Colour(StringEnum):
    RED = "red"
    DARK_BLUE = "navy"


@pytest.mark.parametrize("text", ["red", "RED", "Red", Colour.RED])
def test_one_member(text):
    assert Colour(text) is Colour.RED


def test_by_name_and_by_value():
    assert Colour("dark_blue") is Colour("NAVY") is Colour["DARK_BLUE"] is Colour.DARK_BLUE


def test_what_is_no_member():
    with pytest.raises(ValueError, match="'green' not found in Colour.*'red', 'navy'"):
        Colour("green")
    for value in (3, None, 1.5):
        with pytest.raises(TypeError):
            Colour(value)


def test_comparing_with_text_warns():
    with pytest.warns(UserWarning, match="convert it first"):
        assert Colour.RED == "RED"
    with pytest.warns(UserWarning):
        assert Colour.RED != "green"
    with pytest.warns(UserWarning):
        assert Colour.RED != "navy"


def test_it_can_be_a_key():
    assert {Colour.RED: 1}[Colour("red")] == 1
    assert Colour.RED == Colour.RED and Colour.RED != Colour.DARK_BLUE and Colour.RED != 3


def test_wrong_members_are_refused():
    with pytest.raises(ValueError, match="upper-case"):

        class Lower(StringEnum):
            red = "red"

    with pytest.raises(ValueError, match="lower-case"):

        class Upper(StringEnum):
            RED = "RED"

    with pytest.raises(ValueError, match="lower-case"):

        class Number(StringEnum):
            RED = 1
