"""Streams of servers: pieces that follow each other quickly go through a tunnel together.

A server sends a piece for each token, and each of them wakes two processes and the client. As with
the tokens of our own engines, short passes go together; see ``stream_interval.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from paddler_trio.agent.servers.tunnel_dial import AgentTunnel
from paddler_trio.errors import LinkError
from paddler_trio.scheduler.batching.stream_interval import StreamInterval

MAX_HELD_BYTES: Final = 16_384
"""The bytes of one stream. Where more comes within an interval, deliveries are not what costs."""
_STREAMS: Final = frozenset({b"text/event-stream", b"application/x-ndjson", b"application/jsonl"})


def is_stream(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Return whether the body is events, one after the other, for a reader that follows them."""
    types = [value for name, value in headers if name.lower() == b"content-type"]
    return bool(types) and types[0].partition(b";")[0].strip().lower() in _STREAMS


@attrs.define(eq=False)
class ForwardedStream:
    """The body of one answer on its way into its tunnel; see :meth:`ForwardedStreams.forward`."""

    _tunnel: AgentTunnel
    _interval: StreamInterval | None
    """None: nothing is held."""
    _waiting: _Waiting
    _held: list[bytes] = attrs.field(factory=list, init=False)
    _num_held_bytes: int = attrs.field(default=0, init=False)
    _passing_on: trio.CancelScope | None = attrs.field(default=None, init=False)

    def __repr__(self) -> str:
        return f"<ForwardedStream, {self._num_held_bytes} bytes held>"

    @property
    def due_s(self) -> float:
        """The time at which what is held goes out, whatever comes until then."""
        assert self._interval is not None, "nothing is held"
        return self._interval.due_s

    def hold(self, frames: bytes) -> None:
        """Hold pieces: they go out with what comes next, or when they are due."""
        self._held.append(frames)
        self._num_held_bytes += len(frames)

    def pass_on(self) -> bool:
        """Note that something was read. What is held is sent if it is time, without waiting; False
        if the tunnel did not take all of it. LinkError."""
        if not self._held:
            return True
        if self._tunnel.has_unsent:
            return False
        if self._interval is None:
            return self._tunnel.send_now(self.take_held())
        now_s = trio.current_time()
        if self._interval.passed(now_s) or self._num_held_bytes > MAX_HELD_BYTES:
            return self._send(now_s)
        self._waiting.add(self)
        return True

    def pass_on_overdue(self, now_s: float) -> None:
        """Pass on what is held: nothing has come in time with which it could go. If the tunnel does
        not take it, the block of `until_full` ends."""
        try:
            is_sent = self._send(now_s)
        except LinkError:
            is_sent = False  # whoever writes to the tunnel next sees why
        if not is_sent and self._passing_on is not None:
            self._passing_on.cancel(reason="the tunnel is full")

    @contextmanager
    def until_full(self) -> Iterator[None]:
        """Let who reads pieces pass them on in this block."""
        with trio.CancelScope() as self._passing_on:
            yield
        self._passing_on = None

    def take_held(self) -> bytes:
        """Return what is held; the caller sends it, behind what the tunnel did not take."""
        self._waiting.discard(self)
        held = b"".join(self._held)
        self._held.clear()
        self._num_held_bytes = 0
        return held

    def _send(self, now_s: float) -> bool:
        assert self._interval is not None
        self._interval.delivered(now_s)
        return self._tunnel.send_now(self.take_held())


@attrs.define(eq=False)
class _Waiting:
    """Streams that hold something."""

    streams: set[ForwardedStream] = attrs.field(factory=set, init=False)
    _arrived: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def add(self, stream: ForwardedStream) -> None:
        if not self.streams:
            self._arrived.unpark_all()
        self.streams.add(stream)

    def discard(self, stream: ForwardedStream) -> None:
        self.streams.discard(stream)

    async def wait(self) -> None:
        """Wait until there is one."""
        while not self.streams:
            await self._arrived.park()


@attrs.define(eq=False)
class ForwardedStreams:
    """All forwarded streams of an agent.

    Args:
      interval_s: no piece is held longer than this; 0 for none at all.
    """

    _interval_s: float
    _waiting: _Waiting = attrs.field(factory=_Waiting, init=False)

    @contextmanager
    def forward(
        self, headers: Sequence[tuple[bytes, bytes]], tunnel: AgentTunnel
    ) -> Iterator[ForwardedStream]:
        """Forward the body of an answer with these headers. What is still held at the end of the
        block is nobody's any more."""
        holds = self._interval_s > 0 and is_stream(headers)
        interval = StreamInterval(self._interval_s) if holds else None
        stream = ForwardedStream(tunnel, interval, self._waiting)
        try:
            yield stream
        finally:
            stream.take_held()

    async def run(self) -> None:
        """Pass on what is overdue, until cancelled."""
        while True:
            await self._waiting.wait()
            await trio.sleep_until(min(stream.due_s for stream in self._waiting.streams))
            now_s = trio.current_time()
            for stream in [each for each in self._waiting.streams if each.due_s <= now_s]:
                stream.pass_on_overdue(now_s)
