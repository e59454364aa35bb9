"""Prints metrics as plain lines."""

from typing import Any, TextIO

from composer.core.duration import Time
from composer.core.logger import Logger, format_log_data_value
from composer.core.logger_destination import LoggerDestination
from composer.core.state import State
from composer.core.time_unit import TimeUnit
from composer.loggers._text import config_lines, get_stream, table_to_json, trace_line
from composer.utils import dist

NUM_EVAL_LOGGING_EVENTS = 11
"""How many lines one evaluation prints at most, the one with the results included."""


class ConsoleLogger(LoggerDestination):
    """Prints all metrics to a stream, every so many batches or epochs.

    Args:
        log_interval: How often to print training metrics, in batches or epochs; a number counts
            epochs. The first batch and the last are printed too.
        stream: ``"stdout"``, ``"stderr"`` or an open text file.
        log_traces: Print which algorithms ran at which event, too.
    """

    on_console = "lines"

    def __init__(
        self,
        log_interval: int | str | Time[int] = "1ba",
        stream: str | TextIO = "stderr",
        log_traces: bool = False,
    ) -> None:
        self.log_interval = Time.from_input(log_interval, TimeUnit.EPOCH)
        if self.log_interval.unit not in (TimeUnit.EPOCH, TimeUnit.BATCH):
            raise ValueError(
                f"log_interval={log_interval!r} must be in batches or epochs, as '10ba' or '1ep'."
            )
        if self.log_interval.value < 1:
            raise ValueError(f"log_interval={log_interval!r} must be at least 1.")
        self.stream = get_stream(stream)
        self.should_log_traces = log_traces
        self.last_logged_batch = 0
        self.hparams: dict[str, Any] = {}
        self.hparams_already_logged_to_console = False
        self.logged_metrics: dict[str, Any] = {}
        self._train_metrics: dict[str, Any] = {}
        self.eval_batch_idxs_to_log: list[int] = []
        self.tables: dict[str, str] = {}

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Prints the traces, if asked to."""
        if self.should_log_traces:
            for name, value in traces.items():
                self._print(trace_line(name, value))

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Keeps the hyperparameters; they are printed once, when work starts."""
        self.hparams.update(hyperparameters)

    def log_table(
        self,
        columns: list[str],
        rows: list[list[Any]],
        name: str = "Table",
        step: int | None = None,
    ) -> None:
        """Keeps the table for the next print."""
        del step
        self.tables[name] = table_to_json(columns, rows)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Keeps the metrics for the next print."""
        del step
        self.logged_metrics.update(metrics)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Prints the configuration, once."""
        self._print_config_once()

    def predict_start(self, state: State, logger: Logger) -> None:
        """Prints the configuration, once."""
        self._print_config_once()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Prints, if this batch is due or nothing was printed yet."""
        if self.log_interval.unit == TimeUnit.BATCH:
            self._print_if_due(state, state.timestamp.batch.value)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Prints, if this epoch is due or nothing was printed yet."""
        if self.log_interval.unit == TimeUnit.EPOCH:
            self._print_if_due(state, state.timestamp.epoch.value)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Prints the last batch, if it was not printed."""
        if state.timestamp.batch.value != self.last_logged_batch:
            self._print_train(state)

    def eval_start(self, state: State, logger: Logger) -> None:
        """Plans which batches of the evaluation get a line."""
        self._print_config_once()
        # Put aside, not dropped: if the run ends with this evaluation, its last batch is printed.
        self._train_metrics, self.logged_metrics = self.logged_metrics, {}
        length = None if state.dataloader_len is None else state.dataloader_len.value
        self.eval_batch_idxs_to_log = _batches_to_log(length)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Prints how far the evaluation is, at about every tenth of it."""
        if state.eval_timestamp.batch.value in self.eval_batch_idxs_to_log:
            self.log_to_console({}, state, is_train=False)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Prints the results of the evaluation."""
        self.log_to_console(self.logged_metrics, state, prefix="Eval ", is_train=False)
        self.logged_metrics = self._train_metrics

    def log_to_console(
        self, data: dict[str, Any], state: State, prefix: str = "", is_train: bool = True
    ) -> None:
        """Prints one block: how far the run is, then a line a metric."""
        progress = _train_progress(state) if is_train else _eval_progress(state)
        lines = [f"{progress}:"]
        lines += [
            f"\t {prefix}{name}: {format_log_data_value(value)}" for name, value in data.items()
        ]
        lines += [f"\t {prefix}{name}: {table}" for name, table in self.tables.items()]
        self.tables = {}
        self._print("\n".join(lines) + "\n")

    def _print_if_due(self, state: State, count: int) -> None:
        if count % self.log_interval.value == 0 or self.last_logged_batch == 0:
            self._print_train(state)

    def _print_train(self, state: State) -> None:
        self.log_to_console(self.logged_metrics, state, prefix="Train ")
        self.last_logged_batch = state.timestamp.batch.value
        self.logged_metrics = {}

    def _print_config_once(self) -> None:
        if self.hparams_already_logged_to_console or dist.get_local_rank() != 0:
            return
        self.hparams_already_logged_to_console = True
        if self.hparams:
            self._print("\n".join(config_lines(self.hparams)) + "\n")

    def _print(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def _train_progress(state: State) -> str:
    """``[epoch=2][batch=7/10]`` in a run that counts epochs, else such as ``[batch=7/30]``."""
    max_duration = state.max_duration
    if max_duration is None or max_duration.unit == TimeUnit.EPOCH:
        timestamp = state.timestamp
        epoch, batch = timestamp.epoch.value + 1, timestamp.batch_in_epoch.value
        length = state.epoch_length
        if batch == 0 and epoch > 1:  # the epoch has just ended: it is the one to tell of
            epoch, batch = epoch - 1, length if length is not None else 0
        return f"[epoch={epoch}][batch={batch}{'' if length is None else f'/{length}'}]"
    unit = max_duration.unit
    return f"[{unit.name.lower()}={state.timestamp.get(unit).value}/{max_duration.value}]"


def _eval_progress(state: State) -> str:
    length = "" if state.dataloader_len is None else f"/{state.dataloader_len.value}"
    batch = state.eval_timestamp.batch.value
    return f"[Eval batch={batch}{length}] Eval on {state.dataloader_label} data"


def _batches_to_log(length: int | None) -> list[int]:
    """The batches of an evaluation that get a line; the last has its line with the results."""
    if length is None:
        return []
    if length <= NUM_EVAL_LOGGING_EVENTS:
        return list(range(1, length))
    tenths = range(NUM_EVAL_LOGGING_EVENTS - 1)
    return [1 + round(tenth * (length - 1) / len(tenths)) for tenth in tenths]
