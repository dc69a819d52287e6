"""The panel's files and a fabricated feed on a loopback port: what no real fleet here can show."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs
from fabricated_fleet import FabricatedFleet

TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
SESSION: Final = {"required": False, "signed_in": False, "name": None, "csrf": None}
INFO: Final = {
    "version": "0.1.0",
    "addresses": {
        "inference": ["0.0.0.0:8061"],
        "management": ["0.0.0.0:8060"],
        "openai": [],
        "ollama": [],
        "panel": ["0.0.0.0:8062"],
    },
    "join": {"address": "balancer.lan:8060", "problem": None, "needs_key": True},
    "encrypted": False,
    "capture": False,
}


@attrs.define(eq=False)
class FabricatedPanel:
    """One stream at a time; ``stop`` ends it."""

    folder: Path
    fleet: FabricatedFleet
    stop: threading.Event = attrs.field(factory=threading.Event, init=False)
    sent: int = attrs.field(default=0, init=False)
    """Bytes of events."""

    def events(self) -> Iterator[bytes]:
        """A full event, then diffs at the pace of the fleet."""
        yield self._rendered(self.fleet.full())
        while not self.stop.wait(self.fleet.tick_ms / 1000):
            yield self._rendered(self.fleet.tick())

    def _rendered(self, event: Mapping[str, object]) -> bytes:
        text = json.dumps(event, separators=(",", ":"))
        body = f"id: {event['epoch']}.{event['seq']}\ndata: {text}\n\n".encode()
        self.sent += len(body)
        return body


@contextmanager
def fabricated_panel(folder: Path, fleet: FabricatedFleet) -> Iterator[str]:
    """The URL of the page; nothing of it is left afterwards."""
    panel = FabricatedPanel(folder, fleet)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path.lstrip("/")
            if path == "api/v2/events":
                self._stream()
            elif path in ("api/v2/requests", "api/v2/agents/history"):
                self._answer(json.dumps(panel.fleet.past()).encode(), ".json")
            elif path in ("session", "info"):
                self._answer(json.dumps(SESSION if path == "session" else INFO).encode(), ".json")
            else:
                self._file(path.removeprefix("assets/") or "index.html")

        def log_message(self, *args: object) -> None:
            """A test's output is no place for requests."""

        def _file(self, name: str) -> None:
            found = panel.folder / name
            if "/" in name or not found.is_file():
                self.send_error(404)
            else:
                self._answer(found.read_bytes(), found.suffix)

        def _answer(self, body: bytes, suffix: str) -> None:
            self.send_response(200)
            self.send_header("content-type", TYPES.get(suffix, "application/json"))
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            try:
                for event in panel.events():
                    self.wfile.write(event)
            except (BrokenPipeError, ConnectionResetError):
                return  # the page is closed

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, name="fabricated panel")
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        panel.stop.set()
        server.shutdown()
        server.server_close()
        serving.join()
