"""Requests to a server or to a proxy in front of it, and what came back, with times.

Each asked in a task takes a connection of its own and reads it to its end, whoever ends it: a
connection that breaks is part of what is measured. ``KeptConnection`` is for latencies.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import h11
import trio
from answers import AnswerError

READ_BYTES = 1 << 16
KEPT_REQUESTS = 80
"""llama-server closes a connection after 100, or when it was idle for 5 s."""
KEPT_IDLE_S = 3.0
ASK_S = 10.0

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)

Address = tuple[str, int]


@attrs.define(eq=False)
class Reply:
    """Everything that came back, in pieces with their times in seconds of one monotonic clock."""

    sent_s: float
    pieces: list[tuple[float, bytes]] = attrs.field(factory=list)
    broke: str | None = None
    """Why the connection broke, if it did not just end."""

    @property
    def ended_s(self) -> float:
        """When the last byte came; when the request was sent if none did."""
        return self.pieces[-1][0] if self.pieces else self.sent_s


@attrs.frozen
class Reading:
    """What a reply says.

    Attributes:
      status: 0 if there was none.
      arrivals_s: of its visible tokens.
      tokens: what the server counted; 0 if it did not say.
      events: server-sent ones, whatever is in them.
      error: that the body names.
      agent: in front of the server that answered.
      is_whole: the answer has its end.
    """

    status: int
    arrivals_s: Sequence[float]
    tokens: int
    events: int
    error: str | None
    agent: str
    is_whole: bool


def request_bytes(
    path: str,
    body: Mapping[str, object] | None,
    *,
    is_kept: bool = False,
    key: str | None = None,
) -> bytes:
    """A POST of ``body`` in JSON, or a GET; ``key`` tells its client from others."""
    text = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        *([] if is_kept else ["Connection: close"]),
        *([] if key is None else [f"Authorization: Bearer {key}"]),
        *([] if body is None else ["Content-Type: application/json"]),
        *([] if body is None else [f"Content-Length: {len(text)}"]),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + text


async def exchange(
    address: Address,
    request: bytes,
    *,
    limit_s: float,
    on_begin: Callable[[], None] = lambda: None,
) -> Reply:
    """Send one request, and read until the connection ends.

    Args:
      on_begin: called when the first byte has come.

    Errors:
      AnswerError: not over after ``limit_s``.
    """
    reply = Reply(time.perf_counter())
    with trio.move_on_after(limit_s):
        try:
            async with await trio.open_tcp_stream(*address) as stream:
                await stream.send_all(request)
                while data := await stream.receive_some(READ_BYTES):
                    reply.pieces.append((time.perf_counter(), bytes(data)))
                    if len(reply.pieces) == 1:
                        on_begin()
        except (OSError, trio.BrokenResourceError) as error:
            reply.broke = str(error) or type(error).__name__
        return reply
    raise AnswerError(f"a request was not over after {limit_s:g} s: {request[:60]!r}")


def read(reply: Reply) -> Reading:
    """Parse a reply, also one that broke off."""
    status, agent, is_whole = 0, "", False
    body: list[tuple[float, bytes]] = []
    for arrival_s, event in _parsed(reply):
        if isinstance(event, h11.Response):
            status = event.status_code
            agent = dict(event.headers).get(b"x-paddler-agent", b"").decode()
        elif isinstance(event, h11.Data):
            body.append((arrival_s, bytes(event.data)))
        elif isinstance(event, h11.EndOfMessage):
            is_whole = True
    arrivals_s: list[float] = []
    tokens = events = 0
    error: str | None = None
    for arrival_s, text in _objects(body):
        events += 1
        if text == b"[DONE]":
            continue
        value = json.loads(text)
        if not isinstance(value, dict):
            continue
        if "error" in value:
            error = str(value["error"]["message"])
        for choice in value.get("choices", ()):
            delta = choice.get("delta", {})
            if delta.get("content") or delta.get("reasoning_content"):
                arrivals_s.append(arrival_s)
        tokens = (value.get("usage") or {}).get("completion_tokens", tokens)
    return Reading(status, arrivals_s, tokens, events, error, agent, is_whole)


def _parsed(reply: Reply) -> Iterator[tuple[float, h11.Event]]:
    """The HTTP in it, as far as it goes."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    try:
        for arrival_s, data in [*reply.pieces, (reply.ended_s, b"")]:
            connection.receive_data(data)
            while (event := connection.next_event()) is not h11.NEED_DATA:
                assert isinstance(event, h11.Event)
                yield arrival_s, event
                if isinstance(event, h11.EndOfMessage):
                    return
    except h11.RemoteProtocolError:
        return  # it broke off, without an EndOfMessage


def _objects(body: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The events of a stream, or the one object of another body; a part of one is left out."""
    rest = b""
    for arrival_s, data in body:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                yield arrival_s, line[6:]
    if rest.startswith(b"{") and rest.endswith(b"}"):
        yield body[-1][0], rest


class KeptConnection:
    """A connection that is opened anew, outside the clock, before a server would close it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._num_left = 0
        self._last_s = 0.0

    def prepare(self) -> None:
        """Open it, if it is not open or too old."""
        is_old = time.perf_counter() - self._last_s > KEPT_IDLE_S
        if self._socket is None or not self._num_left or is_old:
            self.close()
            self._socket = socket.create_connection(self._address, timeout=ASK_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._num_left = KEPT_REQUESTS
            self._last_s = time.perf_counter()

    def ask(self, request: bytes) -> float:
        """Seconds until the whole answer was there.

        Errors:
          AnswerError: no answer with status 200 and a length, or none in time.
        """
        assert self._socket is not None, "prepare comes first"
        self._num_left -= 1
        received, length = b"", -1
        began_s = time.perf_counter()
        try:
            self._socket.sendall(request)
            while length < 0 or len(received) < length:
                data = self._socket.recv(READ_BYTES)
                if not data:
                    raise AnswerError(f"the connection ended in an answer: {received[-300:]!r}")
                received += data
                head, blank, _ = received.partition(b"\r\n\r\n")
                if length < 0 and blank:
                    found = _LENGTH.search(head + b"\r\n")
                    if found is None or not head.startswith(b"HTTP/1.1 200"):
                        raise AnswerError(f"no answer of a known length: {received[:300]!r}")
                    length = len(head) + len(blank) + int(found[1])
        except OSError as error:
            raise AnswerError(f"{self._address}: {error}") from error
        self._last_s = time.perf_counter()
        return self._last_s - began_s

    def close(self) -> None:
        """Safe to say twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
