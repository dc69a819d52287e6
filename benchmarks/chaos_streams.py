"""The clients: many at once on the native HTTP listener, each remembering what it heard and when.

A client judges nothing. It keeps the text, every ending it was given, by whom the text was made,
and when each token came; whether that is as promised is decided after the round.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Sequence

import attrs
import h11
import trio

PATH = "/api/v1/continue_from_conversation_history"
READ_BYTES = 1 << 16
TOKEN_TAGS = {"ContentToken", "ReasoningToken", "ToolCallToken", "UndeterminableToken"}


@attrs.define
class Heard:
    """What one client heard, in order; times are monotonic seconds."""

    pieces: list[str] = attrs.field(factory=list)
    arrivals_s: list[float] = attrs.field(factory=list)
    """When each piece came."""
    endings: list[str] = attrs.field(factory=list)
    """Tags of ending results, or ``error CODE``; one ``Done`` if all is well."""
    errors: list[str] = attrs.field(factory=list)
    """What errors said, and how the connection failed if it did."""
    lines_after_ending: int = 0
    made_by: list[str] = attrs.field(factory=list)
    """Names of agents, each time it was another than before."""
    request_id: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def is_as_promised(self) -> bool:
        return self.endings == ["Done"] and not self.errors and not self.lines_after_ending

    def longest_gap_s(self) -> float:
        """Between two pieces that follow each other; 0 if there are not two."""
        pairs = zip(self.arrivals_s, self.arrivals_s[1:], strict=False)
        return max((later - earlier for earlier, later in pairs), default=0.0)

    def take(self, line: bytes, now_s: float) -> bool:
        """One line of the answer; whether it was a token."""
        if self.endings:
            self.lines_after_ending += 1
        message = json.loads(line)
        if "Error" in message:
            self.request_id = message["Error"]["request_id"]
            error = message["Error"]["error"]
            self.endings.append(f"error {error['code']}")
            self.errors.append(error["description"])
            return False
        response = message["Response"]
        self.request_id = response["request_id"]
        if self.made_by[-1:] != [response["generated_by"]]:
            self.made_by.append(response["generated_by"])
        (tag, value) = next(iter(response["response"]["GeneratedToken"].items()))
        if tag not in TOKEN_TAGS:
            self.endings.append(tag)
            return False
        self.pieces.append(value)
        self.arrivals_s.append(now_s)
        return True


@attrs.define(eq=False)
class Tide:
    """Tokens heard by all clients together; ``is_high`` once there were so many."""

    high_tokens: int
    tokens: int = attrs.field(default=0, init=False)
    is_high: trio.Event = attrs.field(factory=trio.Event, init=False)

    def rise(self) -> None:
        self.tokens += 1
        if self.tokens >= self.high_tokens:
            self.is_high.set()


def request_of(address: str, question: str, max_tokens: int) -> bytes:
    """A question as it goes over the wire."""
    body = {
        "add_generation_prompt": True,
        "conversation_history": [{"role": "user", "content": question}],
        "enable_thinking": False,
        "max_tokens": max_tokens,
    }
    text = json.dumps(body).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + text


async def ask_all(
    address: str, questions: Sequence[str], *, max_tokens: int, patience_s: float, tide: Tide
) -> list[Heard]:
    """All questions at once, each heard to its end; the tide is high when they are, at last."""
    all_heard = [Heard() for _ in questions]
    async with trio.open_nursery() as nursery:
        for question, heard in zip(questions, all_heard, strict=True):
            request = request_of(address, question, max_tokens)
            nursery.start_soon(_hear_out, address, request, heard, patience_s, tide)
    tide.is_high.set()
    return all_heard


async def _hear_out(
    address: str, request: bytes, heard: Heard, patience_s: float, tide: Tide
) -> None:
    """One client until its answer ends, the connection breaks or its patience does."""
    http = _asked()
    rest = b""
    with trio.move_on_after(patience_s) as patience:
        try:
            async with await _connect(address) as stream:
                await stream.send_all(request)
                while not isinstance(event := http.next_event(), h11.EndOfMessage):
                    if event is h11.NEED_DATA:
                        http.receive_data(await stream.receive_some(READ_BYTES))
                    elif isinstance(event, h11.Response) and event.status_code != 200:
                        heard.endings.append(f"status {event.status_code}")
                    elif isinstance(event, h11.Data):
                        *lines, rest = (rest + bytes(event.data)).split(b"\n")
                        now_s = time.monotonic()
                        for line in lines:
                            if heard.take(line, now_s):
                                tide.rise()
        except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            heard.errors.append(f"the connection broke: {error!r}")
    if patience.cancelled_caught:
        heard.errors.append(f"no ending within {patience_s:g} s")
    if rest:
        heard.errors.append(f"half a line at the end: {rest[:80]!r}")


async def ask_and_reset(address: str, question: str, *, after_bytes: int) -> bool:
    """Ask, read so much of the answer, and vanish with a reset instead of a goodbye.

    Returns:
      Whether it did; an answer that is shorter is over before.
    """
    async with await _connect(address) as stream:
        await stream.send_all(request_of(address, question, 2000))
        read_bytes = 0
        while read_bytes < after_bytes:
            data = await stream.receive_some(READ_BYTES)
            if not data:
                return False
            read_bytes += len(data)
        no_linger = struct.pack("ii", 1, 0)
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
    return True


async def _connect(address: str) -> trio.SocketStream:
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


def _asked() -> h11.Connection:
    """A connection that waits for an answer; what was asked went out by other means."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="POST", target=PATH, headers=[("Host", "x")]))
    http.send(h11.EndOfMessage())
    return http
