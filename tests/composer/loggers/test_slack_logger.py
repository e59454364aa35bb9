import http.server
import json
import threading
import urllib.parse

import pytest

pytest.importorskip("slack_sdk")

from composer.loggers import SlackLogger
from tests.composer.plugins import HandRun


class Slack(http.server.BaseHTTPRequestHandler):
    """Plays the one method of Slack's API that is called."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {key: value[0] for key, value in urllib.parse.parse_qs(body).items()}
        if "json" in self.headers["Content-Type"]:
            form = json.loads(body)
        self.server.got.append((self.path, self.headers["Authorization"], form))
        status, answer = self.server.answers.pop(0) if self.server.answers else (200, {"ok": True})
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def slack():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slack)
    server.got, server.answers = [], []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def make(slack, **kwargs):
    settings = {"slack_logging_api_key": "key", "channel_id": "channel"}
    logger = SlackLogger(**(settings | kwargs))
    logger.client.base_url = f"http://127.0.0.1:{slack.server_port}/api/"
    return logger


def lines(message):
    blocks = message[2]["blocks"]
    blocks = json.loads(blocks) if isinstance(blocks, str) else blocks
    return [block["text"]["text"] for block in blocks]


def test_news_are_posted_each_epoch(slack):
    logger = make(slack, include_keys=["loss/", "seed"], log_interval="1ep")

    run = HandRun(logger, max_duration="2ep")
    run.logger.log_hyperparameters({"seed": 17, "other": 1})
    run.loaded().fit()
    assert len(slack.got) == 2
    run.logger.log_metrics({"loss/last": 0.123456, "not/loss/": 1})
    run.close()
    assert [(path, key) for path, key, _ in slack.got] == [
        ("/api/chat.postMessage", "Bearer key")
    ] * 3
    assert {form["channel"] for _, _, form in slack.got} == {"channel"}
    first, _, last = map(lines, slack.got)
    assert first[0] == "*seed:* 17"
    assert first[1].startswith("*loss/train/total:* ") and len(first) == 2
    assert last == ["*loss/last:* 0.1235"]


def test_long_messages_are_split_and_short_intervals_gather(slack):
    logger = make(slack, max_logs_per_message=2, include_keys=["x"])
    run = HandRun(logger)
    run.logger.log_metrics({f"x{number}": number for number in range(5)})
    run.close()
    assert [len(lines(message)) for message in slack.got] == [2, 2, 1]


def test_a_formatter(slack):
    def formatter(news):
        return [{"type": "section", "text": {"type": "plain_text", "text": str(sorted(news))}}]

    run = HandRun(make(slack, formatter_func=formatter))
    run.logger.log_traces({"b": 1, "a": 2})
    run.close()
    assert lines(slack.got[0]) == ["['a', 'b']"]


def test_a_limit_is_waited_for_and_an_error_is_logged(slack, caplog):
    slack.answers += [
        (429, {"ok": False}),
        (200, {"ok": True}),
        (200, {"ok": False, "error": "no"}),
    ]
    logger = make(slack, max_logs_per_message=1)
    run = HandRun(logger)
    run.logger.log_metrics({"a": 1, "b": 2})
    run.close()
    assert [lines(message) for message in slack.got] == [["*a:* 1"], ["*a:* 1"], ["*b:* 2"]]
    assert "Posting to Slack failed" in caplog.text


def test_other_ranks_are_silent(slack, monkeypatch):
    monkeypatch.setattr("composer.utils.dist.get_global_rank", lambda: 1)
    HandRun(make(slack), max_duration="1ba").loaded().fit().close()
    assert not slack.got


def test_settings_are_checked(monkeypatch):
    monkeypatch.delenv("SLACK_LOGGING_API_KEY", raising=False)
    with pytest.raises(ValueError, match="SLACK_LOGGING_API_KEY"):
        SlackLogger()
    monkeypatch.setenv("SLACK_LOGGING_API_KEY", "key")
    monkeypatch.setenv("SLACK_LOGGING_CHANNEL_ID", "channel")
    assert SlackLogger(max_logs_per_message=99).max_logs_per_message == 50
    for settings in ({"log_interval": "5tok"}, {"log_interval": 0}, {"max_logs_per_message": 0}):
        with pytest.raises(ValueError, match="must be at least"):
            SlackLogger(**settings)
