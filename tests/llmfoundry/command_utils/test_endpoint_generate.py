"""Prompts sent to a server on loopback that counts, refuses and fails."""

import csv
import json
import runpy
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmfoundry.command_utils import endpoint_generate as module
from llmfoundry.command_utils.endpoint_generate import (
    EndpointError,
    RateLimit,
    endpoint_generate,
)

ROOT = Path(__file__).parents[3]


class Server(ThreadingHTTPServer):
    """Answers each prompt with it in upper case, after the failures that it is told to give."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.failures: list[int] = []
        self.requests: list[tuple[float, dict[str, Any], str | None]] = []
        self.refuses = "never sent"
        self.refuses_after = 0
        self.shape = "choices"

    def answer(self, prompts: list[str]) -> dict[str, Any]:
        """Returns the body of an answer; choices come in any order."""
        if self.shape == "outputs":
            return {"outputs": [prompt.upper() for prompt in prompts]}
        if self.shape == "chat":
            return {"choices": [{"message": {"content": prompt.upper()}} for prompt in prompts]}
        choices = [{"index": i, "text": prompt.upper()} for i, prompt in enumerate(prompts)]
        return {"choices": choices[::-1]}


class Handler(BaseHTTPRequestHandler):
    """Handles a request to `Server`."""

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.requests.append((time.monotonic(), body, self.headers["Authorization"]))
        status = server.failures.pop() if server.failures else 200
        if server.refuses in body["prompt"]:
            status = 400
            while len(server.requests) < server.refuses_after:
                time.sleep(0.01)
        content = json.dumps(server.answer(body["prompt"]) if status == 200 else {"why": status})
        self.send_response(status)
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "BACKOFF_SECONDS", 0.01)
    monkeypatch.delenv(module.API_KEY_VARIABLE, raising=False)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv(module.URL_VARIABLE, f"http://127.0.0.1:{server.server_port}/v1/x")
        yield server
        server.refuses_after = 0
        server.shutdown()
        thread.join()


def _args(monkeypatch: pytest.MonkeyPatch, *flags: str) -> Namespace:
    path = ROOT / "scripts" / "inference" / "endpoint_generate.py"
    monkeypatch.setattr(sys, "argv", [str(path), *flags])
    return runpy.run_path(str(path))["parse_args"]()


def _rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_files_batches_payload_and_output(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text('one, "two"\nthree\nfour')
    flags = [
        "-i",
        f"file::{tmp_path}/prompts.txt",
        "five\nsix",
        "-o",
        str(tmp_path / "new" / "out"),
    ]
    monkeypatch.setenv(module.API_KEY_VARIABLE, "secret")
    endpoint_generate(_args(monkeypatch, *flags, "--batch-size", "3", "--max-tokens", "7"))
    assert _rows(tmp_path / "new" / "out" / "output.csv") == [
        ["batch", "prompt", "output"],
        ["0", 'one, "two"', 'ONE, "TWO"'],
        ["0", "three", "THREE"],
        ["0", "four", "FOUR"],
        ["1", "five\nsix", "FIVE\nSIX"],
    ]
    _, body, key = min(server.requests, key=lambda request: len(request[1]["prompt"]))
    assert key == "secret"
    assert body == {
        "prompt": ["five\nsix"],
        "max_tokens": 7,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
    }
    with pytest.raises(FileExistsError, match="--output-folder"):
        endpoint_generate(_args(monkeypatch, *flags))


def test_openai_payload(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(module.API_KEY_VARIABLE, "secret")
    flags = ["-i", "one", "-o", str(tmp_path), "--api", "openai", "--model", "m"]
    endpoint_generate(_args(monkeypatch, *flags))
    _, body, key = server.requests[0]
    assert key == "Bearer secret" and body["model"] == "m" and "top_k" not in body


def test_outputs_are_understood_too(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.shape = "outputs"
    endpoint_generate(_args(monkeypatch, "-i", "one", "-o", str(tmp_path)))
    assert _rows(tmp_path / "output.csv")[1] == ["0", "one", "ONE"]


def test_the_rate_is_kept(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prompts = [str(number) for number in range(30)]
    flags = ["-o", str(tmp_path), "--batch-size", "2", "--rate-limit", "11"]
    start = time.monotonic()
    endpoint_generate(_args(monkeypatch, "-i", *prompts, *flags))
    assert 2.0 <= time.monotonic() - start < 4
    assert [row[1] for row in _rows(tmp_path / "output.csv")[1:]] == prompts
    times = sorted(when for when, _, _ in server.requests)
    for first in times:  # 0.9 s: requests may overtake each other on their way
        assert 2 * sum(first <= when < first + 0.9 for when in times) <= 11


def test_the_limit_counts_every_second() -> None:
    limit, sent = RateLimit(5), []
    for n_prompts in (2, 3, 1, 4, 5):
        limit.wait(n_prompts)
        sent.append((time.monotonic(), n_prompts))
    for first, _ in sent:
        assert sum(n for when, n in sent if first <= when < first + 0.999) <= 5
    assert 2.0 <= sent[-1][0] - sent[0][0] < 2.5


def test_it_tries_again(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server.failures = [429, 503, 500]
    endpoint_generate(_args(monkeypatch, "-i", "one", "two", "-o", str(tmp_path)))
    assert [row[2] for row in _rows(tmp_path / "output.csv")[1:]] == ["ONE", "TWO"]
    assert len(server.requests) == 4
    server.failures = [500] * module.ATTEMPTS
    with pytest.raises(EndpointError, match="answered 500"):
        endpoint_generate(_args(monkeypatch, "-i", "one", "-o", str(tmp_path / "b")))


def test_what_came_before_a_failure_is_kept(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.refuses = "bad"
    monkeypatch.chdir(tmp_path)
    flags = ["-i", "one", "two", "bad", "--batch-size", "1", "-o"]
    for folder in (str(tmp_path / "here"), f"file://{tmp_path}/store"):
        with pytest.raises(EndpointError, match="answered 400"):
            endpoint_generate(_args(monkeypatch, *flags, folder))
    for folder in ("here", "store"):
        assert [row[2] for row in _rows(tmp_path / folder / "output.csv")[1:]] == ["ONE", "TWO"]


def test_what_is_answered_beside_a_failure_is_kept(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.refuses, server.refuses_after = "bad", 3
    flags = ["-i", "bad", "one", "two", "--batch-size", "1", "-o", f"file://{tmp_path}"]
    with pytest.raises(EndpointError, match="answered 400"):
        endpoint_generate(_args(monkeypatch, *flags))
    assert _rows(tmp_path / "output.csv")[1:] == [["1", "one", "ONE"], ["2", "two", "TWO"]]
    n_requests = len(server.requests)
    with pytest.raises(FileExistsError, match="--output-folder"):
        endpoint_generate(_args(monkeypatch, *flags))
    assert len(server.requests) == n_requests, "nothing is sent for an output that is there"


def test_an_interruption_keeps_what_is_answered(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ctrl-C arrives while the third batch is in the works."""
    server.refuses, server.refuses_after = "slow", 10**9

    def interrupt(*args: Any, **kwargs: Any) -> None:
        if args[0].startswith("batch 2"):
            raise KeyboardInterrupt

    monkeypatch.setattr("builtins.print", interrupt)
    flags = ["-i", "one", "two", "slow", "--batch-size", "1", "-o", f"file://{tmp_path}"]
    with pytest.raises(KeyboardInterrupt):
        endpoint_generate(_args(monkeypatch, *flags))
    assert [row[2] for row in _rows(tmp_path / "output.csv")[1:]] == ["ONE", "TWO"]


def test_answers_of_a_chat_are_no_completions(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.shape = "chat"
    with pytest.raises(EndpointError, match="not for chats"):
        endpoint_generate(_args(monkeypatch, "-i", "one", "-o", str(tmp_path)))


def test_bad_flags_are_refused_before_anything_is_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    common = ["-i", "one", "-o", str(tmp_path)]
    for flags, match in [
        (["--batch-size", "76"], "Batch size is 76, but the rate limit is 75"),
        (["--batch-size", "0"], "at least 1"),
        (["--api", "openai"], "needs --model"),
        (["--model", "m"], "no other takes it"),
        (["-e", "example.com"], "http://"),
    ]:
        with pytest.raises(ValueError, match=match):
            endpoint_generate(_args(monkeypatch, *common, *flags))
    monkeypatch.delenv(module.URL_VARIABLE)
    with pytest.raises(ValueError, match=module.URL_VARIABLE):
        endpoint_generate(_args(monkeypatch, *common))
    assert not server.requests
