"""A request that is over leaves nothing to the garbage collectors of daemons, however it ended.

Daemons make full collections rare, so a cycle that holds a request's body is as good as a leak.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from fleet import END_S, Daemon, Fleet

INJECTED = Path(__file__).parent / "injected"
PATH = os.pathsep.join([str(INJECTED), *filter(None, [os.environ.get("PYTHONPATH")])])
CHAT = "/v1/chat/completions"
LONG = "a b " * 50_000
MESSAGES = [{"role": "user", "content": "Hello"}]
TEXT_BYTES = 4096
"""In the cycles that libraries make: a name of a route, an address."""

Told = Mapping[str, Any]
Attempt = Callable[[Fleet], None]


@attrs.define
class Probe:
    """The garbage of one daemon."""

    daemon: Daemon
    file: Path
    _told: int = 0

    def tell(self) -> Told:
        """What there is now, which is freed by asking."""
        self.daemon.signal(signal.SIGUSR1)
        give_up_s = time.monotonic() + END_S
        while len(lines := self._lines()) == self._told:
            assert time.monotonic() < give_up_s, "the probe does not answer"
            time.sleep(0.01)
        self._told = len(lines)
        told: Told = json.loads(lines[-1])
        return told

    def until_left(self, live: int) -> list[Told]:
        """All garbage that there was until no more than so many connections live."""
        found = [self.tell()]
        give_up_s = time.monotonic() + END_S
        while found[-1]["live"] > live:
            assert time.monotonic() < give_up_s, f"{found[-1]['live']} connections live"
            found.append(self.tell())
        return [*found, self.tell()]

    def _lines(self) -> list[str]:
        text = self.file.read_text() if self.file.exists() else ""
        return text.splitlines()[: text.count("\n")]


@attrs.define
class Probed:
    fleet: Fleet
    balancer: Probe
    agents: list[Probe]


class Server(BaseHTTPRequestHandler):
    """Behind an agent; the path says how it answers."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        if self.headers["Upgrade"] is not None:
            self.close_connection = True
            self.send_response(101)
            self.send_header("Connection", "Upgrade")
            self.send_header("Upgrade", "websocket")
            self.end_headers()
            if self.path == "/stalls":
                self.connection.recv(1)  # until the client is gone
            return
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.close_connection = True
        if self.path != "/closed":
            self.send_response(200)
            self.send_header("Content-Length", str(len(LONG)))
            self.end_headers()
            self.wfile.write(LONG.encode() if self.path == "/whole" else b"The beginning")
        if self.path == "/stalls":
            self.connection.recv(1)  # until the client is gone


@contextmanager
def served() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probed]:
    folder = tmp_path_factory.mktemp("probe")
    env = {"PYTHONPATH": PATH, "GARBAGE_PROBE_FOLDER": str(folder)}
    proxy = "--reverseproxy-addr=127.0.0.1:0"
    with Fleet.start(balancer_options=[proxy], env=env) as fleet, served() as server:
        fleet.start_agent("server", slots=1, options=[f"--upstream={server}"])
        fleet.wait_until(
            lambda view: sum(agent["is_accepting"] for agent in view["agents"]) == 2,
            what="the server offers its slot",
            nobody_ends=True,
        )
        for attempt in (ATTEMPTS["answered"], ATTEMPTS["forwarded"]):
            attempt(fleet)  # the first one imports
        probes = [
            Probe(daemon, folder / str(daemon.pid))
            for daemon in (fleet.balancer, *fleet.agents.values())
        ]
        for probe in probes:
            probe.tell()  # what starting has left
        yield Probed(fleet, probes[0], probes[1:])


def ask(path: str, body: object, status: int, *, media: str = "application/json") -> Attempt:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    def attempt(fleet: Fleet) -> None:
        answer = httpx.post(
            f"{fleet.inference_url}{path}",
            content=content,
            headers={"content-type": media},
            trust_env=False,
            timeout=END_S,
        )
        assert answer.status_code == status, answer.text[:200]

    return attempt


def proxy_of(fleet: Fleet) -> str:
    addresses = fleet.balancer.wait_for_log("balancer up")["reverse_proxy"]
    assert isinstance(addresses, list)
    return str(addresses[0])


def forward(path: str, *, breaks: bool = False, status: int = 200) -> Attempt:
    """To the server; ``breaks``: its answer ends early."""

    def attempt(fleet: Fleet) -> None:
        with (
            pytest.raises(httpx.RemoteProtocolError) if breaks else nullcontext(),
            httpx.stream(
                "POST",
                f"http://{proxy_of(fleet)}{path}",
                json={"prompt": LONG},
                trust_env=False,
                timeout=END_S,
            ) as answer,
        ):
            assert answer.status_code == status
            if path == "/stalls":
                assert next(answer.iter_raw()) == b"The beginning"
            else:
                answer.read()

    return attempt


def connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=END_S)


def leave(path: str, body: object, *, missing: int = 0) -> Attempt:
    """Close the connection when all but the last ``missing`` bytes of the body are sent."""
    content = json.dumps(body).encode()

    def attempt(fleet: Fleet) -> None:
        with connect(fleet.inference) as client:
            client.sendall(
                f"POST {path} HTTP/1.1\r\nHost: {fleet.inference}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
            )
            client.sendall(content[: len(content) - missing])

    return attempt


def say(
    data: bytes,
    answer: bytes,
    then: bytes = b"",
    *,
    to: Callable[[Fleet], str] = lambda fleet: fleet.inference,
) -> Attempt:
    """Send these bytes and, when ``answer`` has begun, those of ``then``; leave."""

    def attempt(fleet: Fleet) -> None:
        address = to(fleet)
        with connect(address) as client:
            client.sendall(data.replace(b"HOST", address.encode()))
            assert client.recv(4096).startswith(answer)
            client.sendall(then)

    return attempt


UPGRADE = (
    b"GET PATH HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SOCKET = UPGRADE.replace(b"PATH", b"/api/v1/inference_socket")
ATTEMPTS: Mapping[str, Attempt] = {
    "answered": ask(CHAT, {"messages": MESSAGES, "max_tokens": 2}, 200),
    "answered twice": ask(CHAT, {"messages": MESSAGES, "max_tokens": 2, "n": 2}, 200),
    "streamed": ask(CHAT, {"messages": MESSAGES, "max_tokens": 2, "stream": True}, 200),
    "a field is wrong": ask(CHAT, {"messages": MESSAGES, "max_tokens": LONG}, 400),
    "one of several shapes": ask(CHAT, {"messages": MESSAGES, "stop": [LONG, 1]}, 400),
    "no JSON": ask(CHAT, b"[" + LONG.encode(), 400),
    "too many values": ask(CHAT, b'{"messages":[' + b"{}," * 200_000 + b"{}]}", 413),
    "no JSON at all": ask(CHAT, LONG.encode(), 415, media="text/plain"),
    "too long for a slot": ask(CHAT, {"messages": [{"role": "user", "content": LONG}]}, 400),
    "and streamed": ask(
        CHAT, {"messages": [{"role": "user", "content": LONG}], "stream": True}, 400
    ),
    "a grammar is wrong": ask("/completion", {"prompt": "a", "grammar": "root ::= ("}, 400),
    "no token": ask("/detokenize", {"tokens": [10**9]}, 400),
    "no such path": ask("/v1/nothing", {"a": LONG}, 404),
    "native": ask("/api/v1/continue_from_raw_prompt", {"raw_prompt": [LONG]}, 400),
    "Anthropic": ask("/v1/messages", {"messages": MESSAGES, "system": [LONG]}, 400),
    "left": leave(CHAT, {"messages": MESSAGES, "max_tokens": 500}),
    "left a stream": leave(CHAT, {"messages": MESSAGES, "max_tokens": 500, "stream": True}),
    "left while decoded": leave(CHAT, {"messages": MESSAGES * 30_000}),
    "left in the body": leave(CHAT, {"messages": MESSAGES, "user": LONG}, missing=1),
    "no HTTP": say(b"\0\1\r\n\r\n", b"HTTP/1.1 400"),
    "a socket": say(SOCKET, b"HTTP/1.1 101"),
    "forwarded": forward("/whole"),
    "forwarded, and left": forward("/stalls"),
    "the server breaks off": forward("/cut", breaks=True),
    "a forwarded socket": say(
        UPGRADE.replace(b"PATH", b"/stalls"), b"HTTP/1.1 101", b"\x81\x00", to=proxy_of
    ),
    "one whose server leaves": say(
        UPGRADE.replace(b"PATH", b"/leaves"), b"HTTP/1.1 101", b"\x81\x00", to=proxy_of
    ),
    "a broken frame": say(SOCKET, b"HTTP/1.1 101", b"\xff\xff\xff"),
    "the server closes": forward("/closed", status=502),
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_a_request_leaves_no_garbage(probed: Probed, attempt: Attempt) -> None:
    live = probed.balancer.tell()["live"]
    attempt(probed.fleet)
    found = probed.balancer.until_left(live)
    for told in [*found, *(agent.tell() for agent in probed.agents)]:
        assert told["exceptions"] == []
        assert told["connections"] == 0
        assert told["text_bytes"] < TEXT_BYTES
