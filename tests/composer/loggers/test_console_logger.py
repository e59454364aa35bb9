import io
import re

import pytest

from composer.loggers.console_logger import NUM_EVAL_LOGGING_EVENTS, ConsoleLogger, _batches_to_log
from tests.composer.plugins import Evaluation, HandRun


def output_of(interval="1ba", evaluation=None, **kwargs):
    stream = io.StringIO()
    run = HandRun(ConsoleLogger(interval, stream), evaluation=evaluation, **kwargs)
    run.logger.log_hyperparameters({"seed": 17, "name": "x"})
    run.loaded().fit().close()
    return stream.getvalue()


def printed(text, pattern=r"^\[.*?\]:$"):
    return re.findall(pattern, text, flags=re.MULTILINE)


def test_a_block_a_batch():
    text = output_of(max_duration="2ba")
    blocks = text.split("[batch=")
    assert blocks[1].startswith("1/2]:\n\t Train time/batch: 0\n\t Train loss/train/total: ")
    assert blocks[2].startswith("2/2]:\n\t Train time/batch: 1\n\t Train loss/train/total: ")
    assert len(blocks) == 3


def test_the_configuration_comes_once_and_first():
    text = output_of(max_duration="2ba")
    assert text.startswith("*" * 30 + "\nConfig:\nname: x\nseed: 17\n" + "*" * 30 + "\n[batch=1/2]")
    assert text.count("Config:") == 1


@pytest.mark.parametrize(
    ("interval", "max_duration", "blocks"),
    [
        ("1ba", "2ep", ["[epoch=1][batch=1/3]:", "[epoch=1][batch=2/3]:", "[epoch=1][batch=3/3]:"]),
        ("4ba", "9ba", ["[batch=1/9]:", "[batch=4/9]:", "[batch=8/9]:", "[batch=9/9]:"]),
        ("1ep", "2ep", ["[epoch=1][batch=3/3]:", "[epoch=2][batch=3/3]:"]),
        (2, "3ep", ["[epoch=1][batch=3/3]:", "[epoch=2][batch=3/3]:", "[epoch=3][batch=3/3]:"]),
        ("3ba", "24sp", ["[sample=4/24]:", "[sample=12/24]:", "[sample=24/24]:"]),
    ],
)
def test_interval(interval, max_duration, blocks):
    assert printed(output_of(interval, max_duration=max_duration))[: len(blocks)] == blocks


def test_evaluation_has_progress_lines_and_results():
    text = output_of("1ep", evaluation=Evaluation("eval", [0.5]), max_duration="1ep")
    assert "[Eval batch=1/2] Eval on eval data:\n[Eval batch=2/2] Eval on eval data:\n" in text
    assert "\t Eval metrics/eval/m: 0.5000\n" in text


def test_the_last_batch_is_printed_even_if_an_evaluation_follows_it():
    text = output_of("4ba", evaluation=Evaluation("eval", [0.5]), max_duration="1ep")
    assert printed(text)[-1] == "[epoch=1][batch=3/3]:"
    last = text.split("[epoch=1][batch=3/3]:")[1]
    assert "Train loss/train/total" in last
    assert "metrics/eval/m" not in last


@pytest.mark.parametrize(
    ("length", "lines"), [(1, 0), (2, 1), (11, 10), (12, 10), (100, 10), (None, 0)]
)
def test_lines_of_an_evaluation(length, lines):
    batches = _batches_to_log(length)
    assert len(set(batches)) == len(batches) == lines <= NUM_EVAL_LOGGING_EVENTS - 1
    if lines:
        assert 1 <= min(batches) <= max(batches) < length


def test_a_long_evaluation_tells_each_tenth():
    assert _batches_to_log(101) == [1, 11, 21, 31, 41, 51, 61, 71, 81, 91]


def test_tables_and_traces():
    stream = io.StringIO()
    run = HandRun(ConsoleLogger("1ba", stream, log_traces=True), max_duration="1ba").loaded()
    run.logger.log_table(["a", "b"], [[1, "x"], [2, "y"]], name="pairs")
    run.logger.log_traces({"algorithm_traces/X/Event.INIT": 1})
    run.fit().close()
    assert '\t Train pairs: {"columns":["a","b"],"data":[[1,"x"],[2,"y"]]}\n' in stream.getvalue()
    assert "[trace]: algorithm_traces/X/Event.INIT:1\n" in stream.getvalue()


@pytest.mark.parametrize("interval", ["10sp", "0ba"])
def test_wrong_interval(interval):
    with pytest.raises(ValueError, match="log_interval"):
        ConsoleLogger(interval)


def test_streams(capsys):
    with pytest.raises(ValueError, match="stdout"):
        ConsoleLogger(stream="stdfoo")
    run = HandRun(ConsoleLogger(stream="stdout"), max_duration="1ba").loaded().fit()
    run.close()
    captured = capsys.readouterr()
    assert "[batch=1/1]:" in captured.out
    assert captured.err == ""
