"""One connection of a hostile client: what it sends, when it leaves, and what it was answered.

A :class:`Call` is data; :func:`perform` plays it over a socket and never raises for what a server
does. Requests are bytes that nobody checks: most of what is sent here no HTTP client would send.
"""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import attrs
import trio

Port: TypeAlias = Literal[
    "inference", "management", "guarded", "guarded_management", "proxied", "deployments"
]
"""``guarded``: of the balancer that asks for keys, and has a model store. ``proxied`` and
``deployments``: for servers behind agents, of every path and by their model."""
Ending: TypeAlias = Literal["answered", "closed", "left", "late", "refused"]
CROWD, NEWCOMER = "127.0.0.9", "127.0.0.8"
"""Addresses of one client with very many connections, and of one who comes then."""
READ_BYTES = 1 << 18
SLOW_READ_BYTES = 1 << 12
KEPT_BYTES = 1 << 16
"""Of an answer, from its beginning and from its end."""
SEND_BYTES = 1 << 20
QUIET_S = 0.3
"""A WebSocket that was silent for so long after an answer is taken as having said all."""


@attrs.frozen
class Pause:
    seconds: float


@attrs.frozen
class Await:
    """Go on when these bytes have been received."""

    marker: bytes


@attrs.frozen
class AwaitAnswers:
    """Go on when so many HTTP answers are complete."""

    number: int


@attrs.frozen
class HalfClose:
    """Close the sending half of the connection."""


Step: TypeAlias = bytes | Pause | Await | AwaitAnswers | HalfClose


@attrs.frozen(kw_only=True)
class Call:
    """One connection.

    Attributes:
      source: the address on loopback that it comes from; None for any.
      steps: in order. Bytes are sent in pieces of at most 1 MiB, while answers are read.
      answers: HTTP answers to wait for; 0 for a WebSocket, which is left when it falls silent.
      leave_after_s: close so long after the last step, whatever was received; None to stay.
      read_pause_s: between two reads of 4 KiB; infinite for a client that reads nothing.
      may_be_cut: a connection that is closed without an answer, or a word in it, is fine here.
      may_fail: 502 is right: the server that it asks is broken.
      expects: the statuses that are right; empty for any answer or typed error.
    """

    port: Port = "inference"
    source: str | None = None
    steps: Sequence[Step]
    answers: int = 1
    leave_after_s: float | None = None
    read_pause_s: float = 0.0
    may_be_cut: bool = False
    may_fail: bool = False
    expects: frozenset[int] = frozenset()

    @property
    def size_bytes(self) -> int:
        return sum(len(step) for step in self.steps if isinstance(step, bytes))


@attrs.define
class Answered:
    """What came of a call. ``statuses`` are those of the HTTP answers that were complete."""

    ending: Ending = "late"
    statuses: list[int] = attrs.field(factory=list)
    body: bytes = b""
    """The beginning of what was received, and its end if it was long."""
    sent_bytes: int = 0
    received_bytes: int = 0
    took_s: float = 0.0

    def problem(self, call: Call) -> str | None:
        """Why this is no clear end of the request; None if it is one."""
        if self.ending == "left" or (self.ending == "closed" and call.may_be_cut):
            return None
        if self.ending != "answered":
            return f"{self.ending} after {self.took_s:.1f} s, {len(self.statuses)} answers"
        for status in self.statuses:
            if call.expects and status not in call.expects:
                return f"status {status} instead of {sorted(call.expects)}: {self.words()}"
            if status == 500 or (status == 502 and not call.may_fail):
                return f"status {status}: {self.words()}"
        for fault in (b'"code":500', b'"code":502', b'"code": 502', b"died while"):
            if fault in self.body and not (call.may_fail and b"500" not in fault):
                return f"an error inside the answer: {self.words()}"
        is_error = bool(self.statuses) and self.statuses[-1] in range(400, 600)
        if is_error and not call.may_be_cut and not self._says_why():
            return f"status {self.statuses[-1]} without a word"
        return None

    def words(self) -> str:
        """The text of the answer, shortened."""
        text = " ".join(self._last_body().decode(errors="replace").split())[:160]
        return "".join(letter if letter.isprintable() else "?" for letter in text)

    def _says_why(self) -> bool:
        return self.statuses[-1] in (404, 405) or len(self._last_body()) >= 10

    def _last_body(self) -> bytes:
        """What follows the last head, as far as it was kept."""
        return self.body[max(self.body.rfind(b"HTTP/1.1 "), 0) :].partition(b"\r\n\r\n")[2]


def head(
    method: str, path: str, headers: Mapping[str, str] | None = None, *, host: str = "127.0.0.1"
) -> bytes:
    """A request's head, ended by an empty line."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def request(
    path: str,
    body: object = None,
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    is_packed: bool = False,
    host: str = "127.0.0.1",
) -> bytes:
    """A whole request; a body that is no ``bytes`` is written as JSON; gzip if ``is_packed``."""
    content = b"" if body is None else body if isinstance(body, bytes) else dumps(body)
    framing = {"Content-Type": "application/json"} if body is not None else {}
    if is_packed:
        content = gzip.compress(content, 9)
        framing["Content-Encoding"] = "gzip"
    framing["Content-Length"] = str(len(content))
    return head(method, path, framing | dict(headers or {}), host=host) + content


def dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def websocket(path: str, frames: Sequence[bytes], *, subprotocol: str = "") -> list[Step]:
    """The steps of a WebSocket that sends these frames as soon as it is open."""
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    if subprotocol:
        headers["Sec-WebSocket-Protocol"] = subprotocol
    return [head("GET", path, headers), Await(b"\r\n\r\n"), *frames]


def frame(payload: bytes, *, opcode: int = 1, is_last: bool = True) -> bytes:
    """A client's frame. Its mask is zero, which leaves the payload as it is."""
    first = (0x80 if is_last else 0) | opcode
    length = len(payload)
    if length < 126:
        size = bytes([0x80 | length])
    elif length < 65536:
        size = bytes([0x80 | 126]) + length.to_bytes(2, "big")
    else:
        size = bytes([0x80 | 127]) + length.to_bytes(8, "big")
    return bytes([first]) + size + bytes(4) + payload


async def perform(call: Call, address: str, *, deadline_s: float) -> Answered:
    """Play the call against ``host:port``; whatever happens is in what is returned."""
    host, _, port = address.rpartition(":")
    answered = Answered()
    reading = _Reading(answered)
    began_s = time.monotonic()
    with trio.move_on_after(deadline_s):
        try:
            opened = await trio.open_tcp_stream(host, int(port), local_address=call.source)
            async with opened as stream:
                stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_send, call, stream, reading, nursery.cancel_scope)
                    await _receive(call, stream, reading)
                    nursery.cancel_scope.cancel(reason="the answer is complete")
                # a connection that we close with bytes unread is reset: nothing of it lingers
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            answered.ending = "closed"
        except* OSError:
            answered.ending = "refused"
    answered.took_s = time.monotonic() - began_s
    answered.body = reading.kept()
    return answered


async def _send(
    call: Call, stream: trio.SocketStream, reading: _Reading, scope: trio.CancelScope
) -> None:
    """Play the steps. That the other side does not take them any more is for the reader to see."""
    try:
        for step in call.steps:
            match step:
                case bytes():
                    view = memoryview(step)
                    for start in range(0, len(view), SEND_BYTES):
                        await stream.send_all(view[start : start + SEND_BYTES])
                        reading.answered.sent_bytes += len(view[start : start + SEND_BYTES])
                case Pause(seconds):
                    await trio.sleep(seconds)
                case Await(marker):
                    while marker not in reading.start:
                        await reading.has_more()
                case AwaitAnswers(number):
                    while len(reading.answered.statuses) < number:
                        await reading.has_more()
                case HalfClose():
                    await stream.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return
    reading.all_sent = True
    if call.leave_after_s is not None:
        await trio.sleep(call.leave_after_s)
        reading.answered.ending = "left"
        scope.cancel(reason="this client leaves")


async def _receive(call: Call, stream: trio.SocketStream, reading: _Reading) -> None:
    """Until all answers are there, the other side closes, or a WebSocket says no more."""
    answered = reading.answered
    read_bytes = SLOW_READ_BYTES if call.read_pause_s else READ_BYTES
    while call.answers == 0 or len(answered.statuses) < call.answers:
        data = b""
        await trio.sleep(call.read_pause_s)
        with trio.move_on_after(QUIET_S if call.answers == 0 else float("inf")) as quiet:
            data = await stream.receive_some(read_bytes)
        if quiet.cancelled_caught:
            if reading.all_sent and answered.received_bytes and call.leave_after_s is None:
                answered.ending = "answered"
                return
            continue
        if not data:
            reading.take_end()
            is_answer = len(answered.statuses) >= max(call.answers, 1)
            answered.ending = "answered" if is_answer else "closed"
            return
        reading.take(data, is_http=call.answers > 0)
    answered.ending = "answered"


@attrs.define(eq=False)
class _Reading:
    """HTTP answers one after the other, as bytes come in; what is kept of them is bounded."""

    answered: Answered
    start: bytes = b""
    all_sent: bool = False
    _end: bytes = b""
    _pending: bytes = b""
    _left: int | None = None
    """Bytes of the body still to come; None while in a head."""
    _is_chunked: bool = False
    _status: int = 0
    _news: trio.Event = attrs.field(factory=trio.Event)

    def take(self, data: bytes, *, is_http: bool) -> None:
        self.answered.received_bytes += len(data)
        room = KEPT_BYTES - len(self.start)
        self.start += data[:room] if room > 0 else b""
        self._end = (self._end + data)[-KEPT_BYTES:]
        self._news.set()
        self._news = trio.Event()
        if is_http:
            self._pending += data
            while self._step():
                pass

    def take_end(self) -> None:
        """The other side closed: this ends an answer without a length."""
        if self._status and self._left is None:
            self.answered.statuses.append(self._status)

    async def has_more(self) -> None:
        await self._news.wait()

    def kept(self) -> bytes:
        if self.answered.received_bytes <= KEPT_BYTES:
            return self.start
        return self.start + b" ... " + self._end

    def _step(self) -> bool:
        """Take one head, chunk or body off what is pending; whether there may be more."""
        if self._left is not None:
            taken = min(self._left, len(self._pending))
            self._pending = self._pending[taken:]
            self._left -= taken
            if self._left:
                return False
            self._left = None
            if not self._is_chunked:
                self._complete()
            return True
        if self._is_chunked:
            line, found, rest = self._pending.partition(b"\r\n")
            if not found:
                return False
            size = int(line.split(b";")[0], 16)
            if size == 0:
                if not rest.startswith(b"\r\n"):
                    return False
                self._pending = rest[2:]
                self._complete()
            else:
                self._pending, self._left = rest, size + 2
            return True
        return self._take_head()

    def _take_head(self) -> bool:
        text, found, rest = self._pending.partition(b"\r\n\r\n")
        if not found:
            return False
        first, *lines = text.split(b"\r\n")
        self._status = int(first.split()[1])
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in lines)
        }
        self._pending = rest
        if self._status == 100:
            return True
        self._is_chunked = fields.get(b"transfer-encoding", b"").lower() == b"chunked"
        if not self._is_chunked:
            length = fields.get(b"content-length")
            if length is None and self._status != 204:
                return False  # until the connection is closed
            self._left = int(length or 0)
            if self._left == 0:
                self._left = None
                self._complete()
        return True

    def _complete(self) -> None:
        self.answered.statuses.append(self._status)
        self._status, self._is_chunked = 0, False
