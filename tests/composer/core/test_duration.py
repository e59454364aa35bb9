"""Time: against the records of upstream, and by its laws."""

import datetime
import json
import math
import operator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.core.duration import Time, ensure_time
from composer.core.time_unit import TimeUnit
from composer.core.timestamp import Timestamp

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "golden" / "time" / "time.json").read_text(encoding="utf-8")
)
# B29: upstream sends wall-clock strings through a clock format, which refuses these.
SECONDS_OF_LONG_WALL_CLOCKS = {"90m": 5400, "24h": 86400, "60s": 60, "100h": 360000}
WITHOUT_UNIT = {"", "1", "5", "1h5"}
OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}


def described(time):
    return {
        "value": "inf" if time.value == math.inf else time.value,
        "type": type(time.value).__name__,
        "unit": time.unit.value,
        "str": str(time),
        "repr": repr(time),
    }


def assert_as_recorded(action, record):
    if "error" in record:
        with pytest.raises(Exception) as raised:
            action()
        assert type(raised.value).__name__ == record["error"]
    else:
        result = action()
        result = described(result) if isinstance(result, Time) else result
        assert result == record["result"]


def operand(text):
    if not isinstance(text, str):
        return text
    return text[2:] if text.startswith("s:") else Time.from_timestring(text)


@pytest.mark.parametrize("record", GOLDEN["parse"], ids=lambda record: repr(record["string"]))
@pytest.mark.filterwarnings("ignore:The time string")
def test_parsing_is_as_recorded(record):
    string = record["string"]
    if string in SECONDS_OF_LONG_WALL_CLOCKS:
        expected = Time(SECONDS_OF_LONG_WALL_CLOCKS[string], TimeUnit.SECOND)
        assert Time.from_timestring(string) == ensure_time(string, "ep") == expected
        return
    assert_as_recorded(lambda: Time.from_timestring(string), record["from_timestring"])
    assert_as_recorded(lambda: ensure_time(string, TimeUnit.EPOCH), record["ensure_time_ep"])


@pytest.mark.parametrize("string", sorted(WITHOUT_UNIT))
def test_a_number_without_a_unit_is_warned_about(string):
    with pytest.warns(UserWarning, match="does not end in a unit"):
        Time.from_timestring(string)


@pytest.mark.parametrize(
    "record", GOLDEN["arith"], ids=lambda record: f"{record['left']}{record['op']}{record['right']}"
)
def test_arithmetic_is_as_recorded(record):
    if "None" in (record["left"], record["right"]):
        record = {**record, "right": None}
    left, right = operand(record["left"]), operand(record["right"])
    assert_as_recorded(lambda: OPERATORS[record["op"]](left, right), record)


@pytest.mark.parametrize("record", GOLDEN["ctor"], ids=lambda r: f"{r['value']}-{r['unit']}")
def test_construction_is_as_recorded(record):
    assert_as_recorded(lambda: Time(record["value"], record["unit"]), record)


@pytest.mark.parametrize("string, seconds", [("1h30m", 5400), ("90m", 5400), ("48h", 172800)])
def test_b29_wall_clock_strings(string, seconds):
    assert Time.from_timestring(string) == Time(seconds, "sec")
    assert Time.from_timedelta(string) == Time(seconds, "sec")


def test_miscellany_is_as_recorded():
    two = Time(2, "ba")
    stamp = Timestamp(batch=7, total_wct=datetime.timedelta(seconds=14))
    by_name = {
        "neg": lambda: -two,
        "pos": lambda: +two,
        "int": lambda: int(Time(0.5, "dur")),
        "float": lambda: float(two),
        "floor": lambda: math.floor(Time(0.5, "dur")),
        "ceil": lambda: math.ceil(Time(0.5, "dur")),
        "bool_zero": lambda: bool(Time(0, "ba")),
        "hash_eq": lambda: hash(two) == hash(Time(2, "ba")),
        "hash_unit": lambda: hash(two) == hash(Time(2, "ep")),
        "from_input_int_none": lambda: Time.from_input(3),
        "from_input_int_ep": lambda: Time.from_input(3, "ep"),
        "from_input_float_dur": lambda: Time.from_input(0.3, "dur"),
        "from_input_str": lambda: Time.from_input("3ba"),
        "from_input_none": lambda: Time.from_input(None, "ep"),
        "ts_ge_str": lambda: stamp >= "7ba",
        "ts_lt_time": lambda: stamp < Time(8, "ba"),
        "ts_eq_ts": lambda: stamp == stamp.copy(),
        "ts_lt_ts": lambda: stamp < stamp,
        "ts_get_dur": lambda: stamp.get("dur"),
        "ts_get_sec": lambda: stamp.get("sec"),
        "ts_lt_dur": lambda: stamp < "0.5dur",
        "ts_lt_int": lambda: stamp < 3,
    }
    for record in GOLDEN["misc"]:
        assert_as_recorded(by_name.pop(record["name"]), record)
    assert not by_name


def test_large_counts_keep_their_last_digit():
    assert Time.from_timestring("9007199254740993tok").value == 9007199254740993


@pytest.mark.parametrize(
    "string", ["nandur", "infba", "-infep", "ba", "1h-5m", "\u0663h", "h5", "0x1ba"]
)
def test_what_cannot_be_a_time_is_refused(string):
    with pytest.raises(ValueError, match="Invalid time string"):
        Time.from_timestring(string)


def test_comparing_with_foreign_objects():
    assert not (Time(1, "ba") == object())
    assert Time(1, "ba") != []
    with pytest.raises(TypeError):
        assert Time(1, "ba") < object()


whole_units = st.sampled_from([unit for unit in TimeUnit if unit is not TimeUnit.DURATION])
counts = st.integers(min_value=-(10**12), max_value=10**12)


@given(counts, whole_units)
def test_strings_and_reprs_come_back(value, unit):
    time = Time(value, unit)
    assert Time.from_timestring(str(time)) == time
    assert eval(repr(time)) == time
    assert Time.from_input(time) is time


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_fractions_come_back_from_their_strings(value):
    assert Time.from_timestring(str(Time(value, "dur"))).value == value


@given(counts, counts, counts, whole_units)
def test_sums_are_those_of_numbers(a, b, c, unit):
    x, y, z = Time(a, unit), Time(b, unit), Time(c, unit)
    assert x + y == y + x == a + y == x + b == Time(a + b, unit)
    assert (x + y) + z == x + (y + z)
    assert (x + y) - y == x
    assert a - y == Time(a - b, unit)
    assert -x + x == Time(0, unit)


@given(counts, counts, whole_units)
def test_order_is_that_of_numbers(a, b, unit):
    x, y = Time(a, unit), Time(b, unit)
    assert (x < y, x <= y, x == y, x != y, x > y, x >= y) == (
        a < b,
        a <= b,
        a == b,
        a != b,
        a > b,
        a >= b,
    )
    assert (x < b) == (x < y) == (x < str(y))
    if x == y:
        assert hash(x) == hash(y)


@given(st.integers(0, 10**9), st.integers(1, 10**9), whole_units)
def test_a_ratio_of_times_is_a_fraction(a, b, unit):
    ratio = Time(a, unit) / Time(b, unit)
    assert ratio.unit is TimeUnit.DURATION
    assert ratio.value == a / b
    assert (ratio * Time(b, unit)).unit is unit


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from("hms"))
def test_wall_clock_strings_count_seconds(hours, minutes, seconds, last):
    text = f"{hours}h{minutes}m{seconds}s"
    assert Time.from_timestring(text) == hours * 3600 + minutes * 60 + seconds
    assert Time.from_timestring(f"{hours}{last}") == hours * {"h": 3600, "m": 60, "s": 1}[last]
