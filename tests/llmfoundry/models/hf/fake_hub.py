"""A hub on loopback that hands out the files of one folder and notes what it was asked."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

COMMIT = "0" * 40


class FakeHub(ThreadingHTTPServer):
    """Serves a folder as the repository ``tiny/model``."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.downloads: list[str] = []
        self.tokens: set[str | None] = set()
        self.n_failures = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _about(self) -> Any:
        """What the API says of the repository: its commit and its files."""
        files = [each for each in sorted(self.server.folder.rglob("*")) if each.is_file()]
        named = {str(each.relative_to(self.server.folder)): each for each in files}
        if "/tree/" in self.path:
            return [
                {"type": "file", "path": name, "size": each.stat().st_size, "oid": "1"}
                for name, each in named.items()
            ]
        siblings = [{"rfilename": name} for name in named]
        return {"id": "tiny/model", "sha": COMMIT, "siblings": siblings}

    def _answer_json(self) -> None:
        is_here = self.path.startswith("/api/models/tiny/model")
        if is_here:
            self.server.tokens.add(self.headers["Authorization"])
        status = 200 if is_here else 404
        if self.server.n_failures:
            self.server.n_failures -= 1
            status = 503
        body = json.dumps(self._about() if status == 200 else {}).encode()
        self.send_response(status)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, with_body: bool) -> None:
        if self.path.startswith("/api/"):
            self._answer_json()
            return
        name = self.path.partition("/resolve/main/")[2] or self.path.partition(f"/{COMMIT}/")[2]
        file = self.server.folder / name
        found = bool(name) and file.is_file()
        body = file.read_bytes() if found else b"{}"
        self.send_response(200 if found else 404)
        if not found:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)
        if with_body and found:
            self.server.downloads.append(name)


@contextmanager
def serving(folder: Path) -> Iterator[FakeHub]:
    """Runs a hub for the length of a block."""
    with FakeHub(folder) as hub:
        thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
