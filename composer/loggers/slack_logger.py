"""Posts to a Slack channel."""

import logging
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, ClassVar

from composer.core.duration import Time
from composer.core.logger import Logger, format_log_data_value
from composer.core.state import State
from composer.core.time_unit import TimeUnit
from composer.loggers._service import ServiceLogger, import_package
from composer.utils.background import BackgroundThreads

__all__ = ["SlackLogger"]

log = logging.getLogger(__name__)

_MAX_BLOCKS = 50  # Slack refuses messages with more
_MAX_WAITING = 10
# A moment for the thread, in which a relay on this machine, or a test's, has answered.
_HAND_OVER_SECONDS = 0.01
_LAST_WAIT_SECONDS = 10


class SlackLogger(ServiceLogger):
    """Posts the newest metrics, hyperparameters and traces to a Slack channel now and then.

    Rank 0 posts, from a thread. While ten messages wait their turn the next one gathers, so that a
    Slack that limits or fails slows nothing down; what cannot be posted is logged and dropped.

    Args:
        include_keys: What to post: regular expressions that match from the start of a name. Empty
            posts everything.
        formatter_func: Makes Slack's blocks out of a dictionary of news; by default one line a
            name.
        log_interval: How often, in batches or epochs.
        max_logs_per_message: How many names a message holds, at most 50.
        slack_logging_api_key: The token; by default of SLACK_LOGGING_API_KEY.
        channel_id: The channel; by default of SLACK_LOGGING_CHANNEL_ID.
    """

    package: ClassVar[str] = "slack_sdk"
    extra: ClassVar[str] = "slack"

    def __init__(
        self,
        include_keys: Sequence[str] = (),
        formatter_func: Callable[[dict[str, Any]], list[dict[str, Any]]] | None = None,
        log_interval: int | str | Time[int] = "1ba",
        max_logs_per_message: int = 50,
        slack_logging_api_key: str | None = None,
        channel_id: str | None = None,
    ) -> None:
        super().__init__()
        self.slack_logging_api_key = slack_logging_api_key or _env("SLACK_LOGGING_API_KEY")
        self.channel_id = channel_id or _env("SLACK_LOGGING_CHANNEL_ID")
        self.formatter_func = formatter_func
        self.regex_all_keys = "|".join(f"(?:{key})" for key in include_keys)
        self.log_interval = Time.from_input(log_interval, TimeUnit.EPOCH)
        if (
            self.log_interval.unit not in (TimeUnit.EPOCH, TimeUnit.BATCH)
            or self.log_interval.value < 1
        ):
            raise ValueError(
                f"log_interval={log_interval!r} must be at least one batch or epoch, such as "
                "'10ba' or '1ep'."
            )
        if max_logs_per_message < 1:
            raise ValueError(f"max_logs_per_message={max_logs_per_message!r} must be at least 1.")
        self.max_logs_per_message = min(max_logs_per_message, _MAX_BLOCKS)
        self.client: Any = self._service.WebClient(token=self.slack_logging_api_key)
        handlers = import_package("slack_sdk.http_retry.builtin_handlers", "slack")
        self.client.retry_handlers.append(handlers.RateLimitErrorRetryHandler(max_retry_count=2))
        self.log_dict: dict[str, Any] = {}
        self.last_log_time = Time(0, self.log_interval.unit)
        self._thread = BackgroundThreads(1, "slack")
        self._sending: list[Future[None]] = []

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Keeps metrics for the next message."""
        del step
        self._keep(metrics)

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Keeps hyperparameters for the next message."""
        self._keep(hyperparameters)

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Keeps traces for the next message."""
        self._keep(traces)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Posts, if this batch is due."""
        self._post_if_due(state.timestamp.batch)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Posts, if this epoch is due."""
        self._post_if_due(state.timestamp.epoch)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Waits until everything is posted, if Slack answers."""
        super().fit_end(state, logger)
        wait(self._sending, _LAST_WAIT_SECONDS)

    def close(self, state: State, logger: Logger) -> None:
        """Posts the rest."""
        self._start_posting()
        self._thread.close()

    def _keep(self, news: dict[str, Any]) -> None:
        if self._enabled:
            self.log_dict.update(
                (name, value) for name, value in news.items() if re.match(self.regex_all_keys, name)
            )

    def _post_if_due(self, now: Time[int]) -> None:
        if now.unit != self.log_interval.unit or now - self.last_log_time < self.log_interval:
            return
        self._sending = [future for future in self._sending if not future.done()]
        if len(self._sending) < _MAX_WAITING:
            self.last_log_time = now
            self._start_posting()

    def _start_posting(self) -> None:
        if self.log_dict:
            self._sending.append(self._thread.submit(self._post, self.log_dict))
            wait(self._sending, _HAND_OVER_SECONDS)
            self.log_dict = {}

    def _post(self, news: dict[str, Any]) -> None:
        names = list(news)
        for start in range(0, len(names), self.max_logs_per_message):
            part = {name: news[name] for name in names[start : start + self.max_logs_per_message]}
            try:
                self.client.chat_postMessage(
                    channel=self.channel_id,
                    text=", ".join(part),  # what notifications show
                    blocks=(self.formatter_func or _default_blocks)(part),
                )
            except Exception as error:  # Slack's, the network's or the formatter's
                log.error("Posting to Slack failed: %s", error)


def _default_blocks(news: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "type": "section",
            "text": {"type": "mrkdwn", "text": f"*{name}:* {format_log_data_value(value)}"},
        }
        for name, value in news.items()
    ]


def _env(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ValueError(f"SlackLogger needs {name}: give it as an argument or in the environment.")
    return value
