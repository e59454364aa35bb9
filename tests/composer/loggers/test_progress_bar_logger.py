import io

import pytest

from composer.callbacks.speed_monitor import SpeedMonitor
from composer.core.event import Event
from composer.loggers import progress_bar_logger as module
from composer.loggers._progress_display import BarDisplay, LineDisplay
from composer.loggers.file_logger import FileLogger
from composer.loggers.progress_bar_logger import ProgressBarLogger, _clock_text, _short_number
from tests.composer.plugins import Evaluation, HandRun, Regression


class Terminal(io.StringIO):
    def isatty(self):
        return True


class CountsFlops(Regression):
    def flops_per_batch(self, batch):
        return 1e6


@pytest.fixture
def every_batch(monkeypatch):
    monkeypatch.setattr(LineDisplay, "MIN_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(BarDisplay, "PAUSE_SECONDS", 0.0)


def run_on(stream, *more, **kwargs):
    run = HandRun(*more, ProgressBarLogger(stream), **kwargs)
    run.logger.log_hyperparameters({"seed": 17})
    run.loaded().fit().close()
    return stream.getvalue()


def test_plain_lines_without_a_terminal(every_batch):
    text = run_on(
        io.StringIO(),
        SpeedMonitor(window_size=1, gpu_flops_available=1e7),
        max_duration="2ep",
        evaluation=Evaluation("eval", [0.5, 0.25]),
        tokens_per_sample=1000,
        model=CountsFlops(),
    )
    assert not any(ord(character) < 32 and character != "\n" for character in text)
    lines = text.splitlines()
    assert lines[1:3] == ["Config:", "seed: 17"]
    train = [line for line in lines if line.startswith("train ")]
    assert train[0].startswith("train 1/6 ba (17%)  epoch 1/2  loss ")
    assert "lr 0.1  tok/s 8.0k  mfu 20.0%  eta 0:00:0" in train[1]
    assert "GB" in train[1]
    assert train[-1].startswith("train 6/6 ba (100%)  epoch 2/2  loss ")
    assert [line for line in lines if line.startswith("eval 2/2 ba (100%)  m ")] == [
        "eval 2/2 ba (100%)  m 0.5000",
        "eval 2/2 ba (100%)  m 0.2500",
    ]


@pytest.mark.parametrize(("slept", "shown"), [(0.0, "0%"), (0.25, "50%"), (2.0, "100%")])
def test_the_share_of_waiting_for_data(every_batch, monkeypatch, slept, shown):
    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    run = HandRun(ProgressBarLogger(stream), max_duration="3ba", batch_seconds=0.5).loaded()
    run.engine.run_event(Event.FIT_START)
    for batch in run.loader:
        run.engine.run_event(Event.BEFORE_DATALOADER)
        now[0] += slept
        run.train_batch(batch)  # fires AFTER_DATALOADER
    run.close()
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("train")]
    assert [line.split("data wait ")[1].split()[0] for line in lines] == [shown] * 3


def test_lines_are_rare():
    text = run_on(io.StringIO(), max_duration="60ba", batches_per_epoch=60)
    train = [line for line in text.splitlines() if line.startswith("train ")]
    assert [line.split()[1] for line in train] == ["1/60", "60/60"]


def test_bars_on_a_terminal(every_batch, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    text = run_on(Terminal(), max_duration="2ep", evaluation=Evaluation("eval", [0.5, 0.25]))
    assert "\x1b[" in text
    assert "train 6/6 ba  epoch 2/2  loss " in text
    assert "eval 2/2 ba  m 0.5000" in text
    assert text.rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in text  # the cursor is given back


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(every_batch, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in run_on(Terminal(), max_duration="2ba")


def test_frames_do_not_get_into_a_log_file(every_batch, monkeypatch, tmp_path):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    logger = FileLogger(str(tmp_path / "log.txt"), capture_stdout=False)
    run_on(terminal, logger, max_duration="3ba")
    assert "\x1b[" in terminal.getvalue()
    assert "[stderr]" not in (tmp_path / "log.txt").read_text()


def test_only_the_first_rank_of_a_node_shows(monkeypatch):
    monkeypatch.setattr(module.dist, "get_local_rank", lambda: 1)
    assert run_on(io.StringIO(), max_duration="2ba") == ""


def test_rate_after_a_resume_is_of_this_process(every_batch):
    stream = io.StringIO()
    run = HandRun(ProgressBarLogger(stream), max_duration="203ba", batches_per_epoch=300)
    run.state.timestamp = run.state.timestamp.copy(batch=200, sample=800, batch_in_epoch=200)
    run.loaded().fit().close()
    first = next(line for line in stream.getvalue().splitlines() if line.startswith("train"))
    assert "train 201/203 ba (99%)" in first
    assert "sp/s 8 " in first  # 4 samples in 0.5 seconds


def test_traces_are_shown_if_asked_for():
    stream = io.StringIO()
    run = HandRun(ProgressBarLogger(stream, log_traces=True))
    run.logger.log_traces({"algorithm_traces/X/Event.INIT": 1})
    run.close()
    assert "[trace]: algorithm_traces/X/Event.INIT:1" in stream.getvalue()


def test_state_of_an_upstream_checkpoint_is_taken():
    ProgressBarLogger().load_state_dict({"train_pbar": None, "eval_pbar": None})


def test_wrong_stream():
    with pytest.raises(ValueError, match="stdfoo"):
        ProgressBarLogger("stdfoo")


def test_number_texts():
    assert [_short_number(x) for x in (0.5, 950, 12345, 1.2e6, 3e9)] == [
        "0.5",
        "950",
        "12.3k",
        "1.2M",
        "3.0G",
    ]
    assert [_clock_text(x) for x in (0, 59.6, 3723)] == ["0:00:00", "0:01:00", "1:02:03"]
