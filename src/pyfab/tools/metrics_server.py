"""The metrics of this process over HTTP."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

_HOSTS = {
    "127.0.0.1",
    "localhost",
}  # a page of the web that calls this address has another name in its request


class MetricsServer:
    """Answers ``GET /metrics`` from a thread, on loopback alone. Made by `pyfab.serve_metrics`; `close` or `with` ends it."""

    def __init__(self, port: int, text: Callable[[], str], content_type: str) -> None:
        handler = functools.partial(_Handler, text, content_type)
        self._server = _Server(("127.0.0.1", port), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="pyfab metrics", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where the numbers are."""
        return f"http://127.0.0.1:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Ends the server. Closing twice is harmless."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<MetricsServer {self.url}{'' if self._thread.is_alive() else ' closed'}>"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked has gone: the program whose numbers these are is told only of other errors."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = 10.0  # seconds; who says nothing would keep a thread and a descriptor

    def __init__(self, text: Callable[[], str], content_type: str, *given: Any) -> None:
        self._text, self._content_type = text, content_type
        super().__init__(*given)  # answers the request

    def do_GET(self) -> None:
        if self.headers.get("Host", "").partition(":")[0] not in _HOSTS:
            self.send_error(403)
        elif self.path != "/metrics":
            self.send_error(404)
        else:
            content = self._text().encode()
            self.send_response(200)
            self.send_header("Content-Type", self._content_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""
