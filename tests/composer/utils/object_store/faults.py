"""Servers on loopback: a real S3 (moto), and a proxy before it that misbehaves as it is told."""

import contextlib
import http.client
import http.server
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"
TOKEN = "IQoJb3JpZ2luX2VjEXAMPLE"


@dataclass
class Proxy:
    """What a proxy is told to do, and what it was asked."""

    url: str
    faults: list[tuple[str, str]] = field(default_factory=list)
    """(method, fault) to come; each is for the first request with that method, or ``*``."""
    mood: Callable[[str], str | None] = lambda method: None
    """Given a method, says what goes wrong with a request for which no fault is to come."""
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """(method, path, headers) of the requests."""

    def next_fault(self, method: str) -> str | None:
        for index, (for_method, fault) in enumerate(self.faults):
            if for_method in (method, "*"):
                return self.faults.pop(index)[1]
        return self.mood(method)

    def methods(self) -> list[str]:
        return [method for method, _path, _headers in self.seen]


def _handler(host: str, port: int, proxy: Proxy) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            del format, args

        def any_method(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            proxy.seen.append((self.command, self.path, dict(self.headers)))
            fault = proxy.next_fault(self.command)
            with contextlib.suppress(ConnectionError):  # the client may have gone
                if fault == "reset":
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                elif fault is not None and fault.isdigit():
                    # A server that repeats what it was sent.
                    self.answer(int(fault), [], str(self.headers).encode())
                else:
                    if fault == "slow":
                        time.sleep(1.5)
                    self.pass_on(body, half=fault == "truncated")

        def pass_on(self, body: bytes, half: bool) -> None:
            behind = http.client.HTTPConnection(host, port)
            behind.request(self.command, self.path, body, dict(self.headers))
            answer = behind.getresponse()
            data = answer.read()
            behind.close()
            skip = ("transfer-encoding", "connection", "date", "server")
            headers = [(k, v) for k, v in answer.getheaders() if k.lower() not in skip]
            self.answer(answer.status, headers, data, half)

        def answer(
            self, status: int, headers: list[tuple[str, str]], data: bytes, half: bool = False
        ) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            if not any(name.lower() == "content-length" for name, _value in headers):
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if half else data)
            self.close_connection = self.close_connection or half

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = any_method

    return Handler


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64  # the 5 of the standard library are soon full on a busy machine


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Runs a server on loopback and yields its address."""
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def faulty_proxy(host: str, port: int) -> Iterator[Proxy]:
    """Runs a proxy before a server."""
    proxy = Proxy("")
    with serving(_handler(host, port, proxy)) as proxy.url:
        yield proxy


@contextlib.contextmanager
def s3_server() -> Iterator[tuple[str, int]]:
    """Runs moto's S3 and yields its host and port."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()
    finally:
        server.stop()


def make_bucket(host: str, port: int, bucket: str) -> None:
    """Makes a bucket, empty."""
    connection = http.client.HTTPConnection(host, port)
    for method, path in (("POST", "/moto-api/reset"), ("PUT", f"/{bucket}")):
        connection.request(method, path)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
    connection.close()
