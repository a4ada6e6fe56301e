"""Stands between the client and a real MLflow server, counts the calls and makes the trouble a test asks for."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

READS = ("/runs/search", "/experiments/search", "/logged-models/search")
"""What MLflow reads by POST."""


class Proxy:
    """One address. Set the fields while it runs."""

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream).netloc
        self.port = free_port()
        self.calls: list[tuple[str, str]] = []
        self.delay = 0.0
        """Seconds that each call takes at least."""
        self.refuse = 0
        """Answer everything with this status instead of asking the server."""
        self.lose: Callable[[str, str], bool] = lambda method, path: False
        """Of which calls the answer is lost after the server has done what they ask."""
        self._server: _Listener | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def writes(self) -> list[tuple[str, str]]:
        """The calls that can change something."""
        return [(method, path) for method, path in self.calls if method != "GET" and not path.endswith(READS)]

    def up(self) -> None:
        """Listen."""
        self._server = _Listener(self)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """Stop listening and break off every connection."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.break_off()
            self._server = None


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", proxy.port), _Handler)

    def process_request(self, request: object, client_address: object) -> None:
        assert isinstance(request, socket.socket)
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: object) -> None:
        assert isinstance(request, socket.socket)
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""

    def break_off(self) -> None:
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def _answer(self) -> None:
        proxy = self.server.proxy
        path = urlsplit(self.path).path
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        proxy.calls.append((self.command, path))
        time.sleep(proxy.delay)
        if proxy.refuse:
            self._send(proxy.refuse, b"no", {})
            return
        upstream = http.client.HTTPConnection(proxy.upstream, timeout=120)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
            content = answer.read()
        finally:
            upstream.close()
        if proxy.lose(self.command, path):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self._send(answer.status, content, dict(answer.getheaders()))

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@contextmanager
def proxied(upstream: str) -> Iterator[Proxy]:
    """A proxy in front of `upstream`, listening at first."""
    proxy = Proxy(upstream)
    proxy.up()
    try:
        yield proxy
    finally:
        proxy.down()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
