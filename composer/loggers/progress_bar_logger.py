"""Shows how far training and evaluation are, with the figures that matter most."""

import time
from typing import Any, TextIO

import torch

from composer.core.intervals import present_batches
from composer.core.logger import Logger
from composer.core.logger_destination import LoggerDestination
from composer.core.state import State
from composer.core.time_unit import TimeUnit
from composer.loggers._progress_display import BarDisplay, LineDisplay, Progress, make_display
from composer.loggers._text import config_lines, get_stream, trace_line
from composer.utils import dist


class ProgressBarLogger(LoggerDestination):
    """Shows loss, learning rate, speed, MFU, waits for data, remaining time and memory of a run.

    On a terminal it draws bars. Elsewhere (a pipe, a file, a job's log) it writes a plain line
    every 10 to 60 seconds and at the end of each evaluation, without control characters. Only the
    first rank of a node shows anything. MFU, and speed over a window, come from SpeedMonitor;
    without it speed is taken since the last refresh. ``data wait`` is the share of the time since
    the last refresh in which training waited for its next batch.

    Args:
        stream: ``"stdout"``, ``"stderr"`` or an open text file.
        log_traces: Print which algorithms ran at which event, too.
    """

    on_console = "progress bar"

    def __init__(self, stream: str | TextIO = "stderr", log_traces: bool = False) -> None:
        self.stream = get_stream(stream)
        self.should_log_traces = log_traces
        self.hparams: dict[str, Any] = {}
        self.hparams_already_logged_to_console = False
        self.state: State | None = None
        self._metrics: dict[str, Any] = {}
        self._display: LineDisplay | BarDisplay | None = None
        self._speed = _Speed()

    @property
    def show_pbar(self) -> bool:
        """Whether this rank shows anything."""
        return dist.get_local_rank() == 0

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Prints the traces, if asked to."""
        if self.should_log_traces and self._display is not None:
            for name, value in traces.items():
                self._display.print(trace_line(name, value).rstrip())

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Keeps the hyperparameters; they are printed once, when work starts."""
        self.hparams.update(hyperparameters)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Keeps the latest values; they are read when it is time to show them."""
        del step
        self._metrics.update(metrics)

    def init(self, state: State, logger: Logger) -> None:
        """Finds out what the stream can show."""
        del logger
        self.state = state
        if self.show_pbar:
            self._display = make_display(self.stream)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Prints the configuration, once, and starts measuring speed."""
        self._print_config_once()
        self._speed.start(state)

    def predict_start(self, state: State, logger: Logger) -> None:
        """Prints the configuration, once."""
        self._print_config_once()

    def before_dataloader(self, state: State, logger: Logger) -> None:
        """Starts measuring how long the next batch takes to come."""
        self._speed.start_waiting()

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Adds up how long it took."""
        self._speed.stop_waiting()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Shows the state of training, if it is time to."""
        if self._display is not None and self._display.is_due():
            self._display.show(self._train_progress(state))

    def fit_end(self, state: State, logger: Logger) -> None:
        """Shows the end of training."""
        if self._display is not None:
            self._display.finish(self._train_progress(state))

    def eval_start(self, state: State, logger: Logger) -> None:
        """Prints the configuration, once, and forgets the results of the evaluation before."""
        self._print_config_once()
        for name in [name for name in self._metrics if name.startswith(_eval_prefix(state))]:
            del self._metrics[name]

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Shows the state of an evaluation, if it is time to."""
        if self._display is not None and self._display.is_due():
            self._display.show(_eval_progress(state, {}))

    def eval_end(self, state: State, logger: Logger) -> None:
        """Shows the results of an evaluation."""
        if self._display is not None:
            self._display.finish(_eval_progress(state, self._metrics))

    def close(self, state: State, logger: Logger) -> None:
        """Gives the terminal back."""
        if self._display is not None:
            self._display.close()

    def _train_progress(self, state: State) -> Progress:
        done, total, unit = _train_counts(state)
        facts = {"loss": self._metrics.get("loss/train/total")}
        if state.optimizers:
            facts["lr"] = state.optimizers[0].param_groups[0]["lr"]
        texts = {name: f"{float(value):.4g}" for name, value in facts.items() if value is not None}
        texts |= self._speed.rates(state, self._metrics)
        texts |= self._speed.remaining(done, total)
        texts["mem"] = f"{_memory_gigabytes(state):.2f}GB"
        if state.max_duration is not None and state.max_duration.unit == TimeUnit.EPOCH:
            ended = state.timestamp.batch_in_epoch.value == 0
            epoch = state.timestamp.epoch.value + (0 if ended else 1)
            texts = {"epoch": f"{epoch}/{state.max_duration.value}"} | texts
        return Progress("train", done, total, unit, texts)

    def _print_config_once(self) -> None:
        if self._display is None or self.hparams_already_logged_to_console or not self.hparams:
            return
        self.hparams_already_logged_to_console = True
        self._display.print("\n".join(config_lines(self.hparams)))


class _Speed:
    """Tokens (or samples) a second, MFU, the share of waiting for data, and the remaining time."""

    def __init__(self) -> None:
        self._start_time = time.monotonic()
        self._start_done = 0
        self._seen = (0, 0, 0.0)
        self._waits_since: float | None = None
        self._waited_seconds: float | None = None

    def start(self, state: State) -> None:
        """Starts measuring, maybe in the middle of a resumed run."""
        self._start_time = time.monotonic()
        self._start_done = _train_counts(state)[0]
        self._seen = _amounts(state)

    def start_waiting(self) -> None:
        """Takes the time at which a batch was asked for."""
        self._waits_since = time.monotonic()

    def stop_waiting(self) -> None:
        """Adds up the time until it came."""
        if self._waits_since is not None:
            waited = time.monotonic() - self._waits_since
            self._waited_seconds = (self._waited_seconds or 0.0) + waited

    def rates(self, state: State, metrics: dict[str, Any]) -> dict[str, str]:
        """Returns the speed, MFU if it is measured, and the share of waiting for data."""
        texts: dict[str, str] = {}
        samples, tokens, seconds = _amounts(state)
        past_samples, past_tokens, past_seconds = self._seen
        unit, amount = ("tok", tokens - past_tokens) if tokens else ("sp", samples - past_samples)
        rate = metrics.get(f"throughput/{'tokens' if tokens else 'samples'}_per_sec")
        if rate is None and seconds > past_seconds:
            rate = amount / (seconds - past_seconds)
        wait_share = None
        if seconds > past_seconds:
            if self._waited_seconds is not None:
                wait_share = min(self._waited_seconds / (seconds - past_seconds), 1.0)
                self._waited_seconds = 0.0
            self._seen = (samples, tokens, seconds)
        if rate is not None:
            texts[f"{unit}/s"] = _short_number(float(rate))
        mfu = metrics.get("throughput/device/mfu")
        if mfu is not None:
            texts["mfu"] = f"{float(mfu):.1%}"
        if wait_share is not None:
            texts["data wait"] = f"{wait_share:.0%}"
        return texts

    def remaining(self, done: int, total: int | None) -> dict[str, str]:
        """Returns the remaining time, evaluations at the present pace included."""
        if total is None or done <= self._start_done:
            return {}
        elapsed = time.monotonic() - self._start_time
        seconds = elapsed / (done - self._start_done) * max(total - done, 0)
        return {"eta": _clock_text(seconds)}


def _amounts(state: State) -> tuple[int, int, float]:
    timestamp = state.timestamp
    return timestamp.sample.value, timestamp.token.value, timestamp.total_wct.total_seconds()


def _train_counts(state: State) -> tuple[int, int | None, str]:
    """How much is done, of how much, in which unit; a run of epochs counts its batches."""
    max_duration = state.max_duration
    if max_duration is None:
        return state.timestamp.batch.value, None, TimeUnit.BATCH.value
    if max_duration.unit != TimeUnit.EPOCH:
        done = state.timestamp.get(max_duration.unit).value
        return done, int(max_duration.value), max_duration.unit.value
    if state.dataloader_label is not None and state.dataloader_len is not None:
        total = max_duration.value * state.dataloader_len.value
        return present_batches(state), total, TimeUnit.BATCH.value
    return state.timestamp.epoch.value, max_duration.value, TimeUnit.EPOCH.value


def _eval_prefix(state: State) -> str:
    return f"metrics/{state.dataloader_label}/"


def _eval_progress(state: State, metrics: dict[str, Any]) -> Progress:
    prefix = _eval_prefix(state)
    facts = {
        name.removeprefix(prefix): f"{float(value):.4f}"
        for name, value in metrics.items()
        if name.startswith(prefix)
    }
    total = None if state.dataloader_len is None else state.dataloader_len.value
    done = state.eval_timestamp.batch.value
    return Progress(str(state.dataloader_label), done, total, TimeUnit.BATCH.value, facts)


def _memory_gigabytes(state: State) -> float:
    """The peak of the device's memory, or the process's memory where there is no accelerator."""
    if state.device.name == "gpu":
        return torch.cuda.max_memory_allocated() / 1e9
    import psutil

    return psutil.Process().memory_info().rss / 1e9


def _short_number(number: float) -> str:
    """Such as ``950``, ``12.3k`` or ``1.2M``."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f}{suffix}"
    return f"{number:.3g}"


def _clock_text(seconds: float) -> str:
    """Such as ``1:02:03``."""
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole_seconds:02}"
