"""Keeps everything that is logged in memory."""

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from composer.core.logger import Logger
from composer.core.logger_destination import LoggerDestination
from composer.core.state import State
from composer.core.timestamp import Timestamp
from composer.loggers._text import table_to_json


class InMemoryLogger(LoggerDestination):
    """Keeps metrics, hyperparameters and tables in memory, for notebooks and tests.

    Attributes:
        data: For each metric, a list of (timestamp, value) in the order of logging.
        most_recent_values: The last value of each metric.
        most_recent_timestamps: When it was logged.
        hyperparameters: All hyperparameters.
        tables: For each table, its JSON: ``{"columns": [...], "data": [[...], ...]}``.
    """

    def __init__(self) -> None:
        self.data: dict[str, list[tuple[Timestamp, Any]]] = {}
        self.most_recent_values: dict[str, Any] = {}
        self.most_recent_timestamps: dict[str, Timestamp] = {}
        self.hyperparameters: dict[str, Any] = {}
        self.tables: dict[str, str] = {}
        self.state: State | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Remembers the state, whose clock dates every value."""
        del logger
        self.state = state

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Adds to ``hyperparameters``."""
        self.hyperparameters.update(hyperparameters)

    def log_table(
        self,
        columns: list[str],
        rows: list[list[Any]],
        name: str = "Table",
        step: int | None = None,
    ) -> None:
        """Keeps the table under its name, in place of an earlier one."""
        del step
        self.tables[name] = table_to_json(columns, rows)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Adds each value with the present timestamp."""
        del step  # the timestamp says more
        if self.state is None:
            raise RuntimeError("InMemoryLogger was given metrics before Event.INIT.")
        timestamp = self.state.timestamp
        for name, value in metrics.items():
            if isinstance(value, torch.Tensor):
                value = value.detach()  # a part of a graph would not let itself be copied
            kept = value if isinstance(value, (int, float, str)) else copy.deepcopy(value)
            self.data.setdefault(name, []).append((timestamp, kept))
            self.most_recent_values[name] = kept
            self.most_recent_timestamps[name] = timestamp

    def get_timeseries(self, metric: str) -> dict[str, NDArray[Any]]:
        """Returns a metric's values and, under the names of Timestamp's fields, their times.

        Wall-clock fields are in seconds. An unknown metric is a ``ValueError``.
        """
        if metric not in self.data:
            raise ValueError(
                f"The metric {metric!r} was never logged; logged were: {', '.join(self.data)}."
            )
        series: dict[str, list[Any]] = {metric: []}
        for timestamp, value in self.data[metric]:
            series[metric].append(value)
            for field, field_value in timestamp.state_dict().items():
                series.setdefault(field, []).append(_to_number(field_value))
        return {name: np.array(values) for name, values in series.items()}


def _to_number(value: Any) -> float:
    return value.total_seconds() if hasattr(value, "total_seconds") else value
