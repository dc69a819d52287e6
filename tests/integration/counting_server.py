"""A small llama-server on a loopback port that counts its requests and holds them until told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import attrs

HOLD_S = 200.0


@attrs.define(eq=False)
class CountingServer:
    """``num_slots`` is what it says of itself; it works on whatever comes."""

    num_slots: int
    key: str | None = None
    arrived: list[str] = attrs.field(factory=list, init=False)
    """The prompts of completions, in their order."""
    port: int = attrs.field(default=0, init=False)
    _in_work: int = attrs.field(default=0, init=False)
    _goes_on: bool = attrs.field(default=False, init=False)
    _news: threading.Condition = attrs.field(factory=threading.Condition, init=False)

    @classmethod
    @contextmanager
    def start(cls, num_slots: int, key: str | None = None) -> Iterator[CountingServer]:
        """Listens within the block; what is held is let go at its end."""
        server = cls(num_slots, key)
        listener = _Listener(("127.0.0.1", 0), _handler(server))
        listener.daemon_threads = True  # one of a connection that is kept waits for its client
        server.port = listener.server_port
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.let_go()
            listener.shutdown()
            thread.join()
            listener.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def let_go(self) -> None:
        """Answer what is held, and whatever comes."""
        with self._news:
            self._goes_on = True
            self._news.notify_all()

    def wait_arrived(self, number: int) -> None:
        """Until so many completions have arrived."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.arrived) >= number, HOLD_S), self.arrived

    def complete(self, prompt: str) -> bytes:
        """The answer to one completion, after it was let go."""
        with self._news:
            self.arrived.append(prompt)
            self._in_work += 1
            self._news.notify_all()
            self._news.wait_for(lambda: self._goes_on, HOLD_S)
            self._in_work -= 1
        return json.dumps({"content": f"{prompt} by {self.port}"}).encode()

    def told(self, path: str) -> bytes | None:
        """About itself, as llama-server says it; None for what it does not know."""
        with self._news:
            busy = self._in_work
        slots = [{"id": n, "is_processing": n < busy} for n in range(self.num_slots)]
        known: dict[str, object] = {
            "/health": {"status": "ok"},
            "/props": {"total_slots": self.num_slots, "build_info": "b1"},
            "/v1/models": {"data": [{"id": "m"}]},
            "/slots": slots,
        }
        return json.dumps(known[path]).encode() if path in known else None


class _Listener(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone is none; whatever else goes wrong fails the test by its answer."""


def _handler(server: CountingServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

        def do_GET(self) -> None:
            is_open = server.key in (None, self.headers.get("Authorization", "")[7:])
            path = self.path.partition("?")[0]
            if not is_open and path != "/health":
                self._send(401, b'{"error":{"message":"Invalid API Key"}}')
                return
            told = server.told(path)
            self._send(404 if told is None else 200, told or b"{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._send(200, server.complete(json.loads(body)["prompt"]))

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
