"""A server with OpenAI's completions and chat API, on loopback, that answers with a tiny model."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch


class TinyServer(ThreadingHTTPServer):
    """Serves a model of transformers.

    ``faults`` are met first, one a request: a status, or ``"hang"``. ``echoes`` and
    ``gives_logprobs`` say what the server can; ``requests`` holds what it was asked.
    """

    daemon_threads = True

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model, self.tokenizer = model, tokenizer
        self.faults: list[Any] = []
        self.requests: list[tuple[str, dict[str, Any], str]] = []
        self.echoes = self.gives_logprobs = True
        self.refuses_echo = False
        self.chat_answer = " the mat"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @torch.no_grad()
    def complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request for completions of one token."""
        assert asked["max_tokens"] == 1 and asked["temperature"] == 0
        prompt = asked["prompt"]
        predicted = self.model(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
        tokens = [*prompt, int(predicted[-1].argmax())]
        found = list(zip(tokens[1:], predicted, strict=True))
        own: list[Any] = [float(row[token]) for token, row in found]
        tops: list[Any] = [
            {self.text(int(i)): float(row[i]) for i in row.topk(asked["logprobs"]).indices}
            for _, row in found
        ]
        for top, token, value in zip(tops, tokens[1:], own, strict=True):
            top[self.text(token)] = value  # as OpenAI adds the token itself
        begin = 0 if asked.get("echo") and self.echoes else len(prompt)
        logprobs = {
            "tokens": [self.text(token) for token in tokens][begin:],
            "token_logprobs": [None, *own][begin:],
            "top_logprobs": [None, *tops][begin:],
            "text_offset": [0] * (len(tokens) - begin),
        }
        text = "".join(logprobs["tokens"])
        choice = {"index": 0, "finish_reason": "length", "text": text}
        choice["logprobs"] = logprobs if self.gives_logprobs else None
        return {"id": "c", "object": "text_completion", "choices": [choice]}

    def chat(self) -> dict[str, Any]:
        """The same answer to any chat."""
        message = {"role": "assistant", "content": self.chat_answer}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"id": "c", "object": "chat.completion", "choices": [choice]}

    def text(self, token: int) -> str:
        """A token's text; pieces of characters as OpenAI shows them."""
        text = self.tokenizer.decode([token])
        return f"bytes:{token}" if "\ufffd" in text else text


class _Handler(BaseHTTPRequestHandler):
    server: TinyServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def do_GET(self) -> None:
        self._answer(200 if self.path.endswith("/ping") else 404, {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Authorization", "")
        self.server.requests.append((self.path, asked, key))
        fault = self.server.faults.pop(0) if self.server.faults else None
        if fault == "hang":
            time.sleep(1)
        elif fault is not None:
            return self._answer(fault, {"error": {"message": f"fault {fault}", "code": "x"}})
        if self.path == "/v1/chat/completions":
            return self._answer(200, {"created": 1, "model": asked["model"], **self.server.chat()})
        if asked.get("echo") and self.server.refuses_echo:
            return self._answer(400, {"error": {"message": "echo and logprobs exclude each other"}})
        self._answer(200, {"created": 1, "model": asked["model"], **self.server.complete(asked)})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("retry-after-ms", "1")
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):  # whom it kept waiting is gone
            pass


@contextmanager
def serving(model: Any, tokenizer: Any) -> Iterator[TinyServer]:
    """Runs a server for the length of a block."""
    with TinyServer(model, tokenizer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
