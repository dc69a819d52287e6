"""A reverse proxy that puts the panel below a path of its own, as operators' web servers do.

It renames the host, takes its prefix off the path, announces TLS, and streams what it gets.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PIECE_BYTES = 65_536
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "host"})
TIMEOUT_S = 60.0


@contextmanager
def proxying(upstream: str, *, prefix: str, tls: bool = False) -> Iterator[str]:
    """``upstream`` is a base URL with its slash, ``prefix`` a path with both slashes; gives the URL
    of the same behind the proxy."""
    target = urlsplit(upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = TIMEOUT_S

        def log_message(self, *_: object) -> None:
            """Nowhere."""

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except (ConnectionError, http.client.HTTPException):
                self.close_connection = True  # one of the two sides has left

        def __getattr__(self, name: str) -> Callable[[], None]:
            if name.startswith("do_"):  # whatever the method
                return self._pass_on
            raise AttributeError(name)

        def _pass_on(self) -> None:
            self.close_connection = True
            if not self.path.startswith(prefix):
                self.send_error(404, f"only {prefix} is here")
                return
            size_bytes = int(self.headers.get("Content-Length", 0))
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in HOP_BY_HOP
            }
            headers |= {"Host": target.netloc, "X-Forwarded-Host": self.headers["Host"]}
            if tls:
                headers["X-Forwarded-Proto"] = "https"
            connection = http.client.HTTPConnection(target.netloc, timeout=TIMEOUT_S)
            try:
                path = target.path + self.path.removeprefix(prefix)
                connection.request(self.command, path, self.rfile.read(size_bytes), headers)
                answer = connection.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in HOP_BY_HOP:
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                while piece := answer.read1(PIECE_BYTES):
                    self.wfile.write(piece)
                    self.wfile.flush()
            finally:
                connection.close()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="proxy")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{prefix}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
