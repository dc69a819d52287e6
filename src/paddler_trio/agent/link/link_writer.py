"""Send frames to a balancer: at once where nothing is in the way, else through a queue.

A frame that goes through a queue costs a wake-up and a turn of the event loop, which is more than
all else that an agent does for a token. So as long as the balancer reads, the results of a pass are
written where they are made, in one call that does not wait. What the kernel has no room for waits
in the queue, in order, and so does everything over TLS.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import attrs
import trio
import trio_websocket

from paddler_trio.agent.link.dialled_stream import DialledStream
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.websocket_text import MASK_BYTES, masked_frame

OUTGOING_FRAMES = 2048
"""Ten seconds of one frame a pass at 200 passes/s; a balancer that lags more is disconnected."""
MASKS_BYTES = 64 * MASK_BYTES
"""Masks that are got from the kernel in one call."""
DIRECT_BYTES = 65536
"""Longer frames are written by their task, so that others have their turn."""


@attrs.define(eq=False)
class LinkWriter:
    """The frames of one connection, UTF-8 text each.

    Args:
      stream: what ``socket`` writes to; None to send all frames from the task of :meth:`run`.
      on_full: called when ``OUTGOING_FRAMES`` wait already.
    """

    socket: trio_websocket.WebSocketConnection
    stream: DialledStream | None
    on_full: Callable[[], None]
    _frames: trio.MemorySendChannel[bytes] = attrs.field(init=False)
    _outgoing: trio.MemoryReceiveChannel[bytes] = attrs.field(init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _num_queued: int = attrs.field(default=0, init=False)
    """Frames queued so far; ``_written`` counts those sent."""
    _masks: bytes = attrs.field(default=b"", init=False, repr=False)
    """Masks from the kernel: each is used once."""
    _num_masked: int = attrs.field(default=0, init=False)
    _written: Changes = attrs.field(factory=Changes, init=False)

    def __attrs_post_init__(self) -> None:
        self._frames, self._outgoing = trio.open_memory_channel[bytes](OUTGOING_FRAMES)

    @property
    def num_unsent(self) -> int:
        """Frames that wait."""
        return self._num_queued - self._written.ordinal

    def send(self, *frames: bytes) -> None:
        """Send these frames, after all before them; nothing once the connection ends."""
        if not self._is_closed and not self._write_now(frames):
            for frame in frames:
                self._queue(frame)

    def close(self) -> None:
        """Send nothing more than what was given before."""
        self._is_closed = True
        self._frames.close()

    async def sent(self) -> None:
        """Wait until every frame given before this call was sent."""
        await self._written.wait_beyond(self._num_queued - 1)

    async def run(self) -> None:
        """Send what waits, until ``close`` and the last frame."""
        async for frame in self._outgoing:
            if frame:
                await self.socket.send_message(frame.decode())
            elif self.stream is not None:
                await self.stream.send_all(b"")
            self._written.notify()

    def _write_now(self, frames: tuple[bytes, ...]) -> bool:
        """Return whether these are on their way, together."""
        stream = self.stream
        if (
            stream is None
            or self.num_unsent
            or self.socket.closed is not None
            or sum(map(len, frames)) > DIRECT_BYTES
        ):
            return False
        data = b"".join([masked_frame(frame, self._next_mask()) for frame in frames])
        if not stream.write_now(data):
            return False
        if stream.has_unsent:
            self._queue(b"")  # the task sends the rest
        return True

    def _next_mask(self) -> bytes:
        start = self._num_masked
        if start == len(self._masks):
            self._masks, start = os.urandom(MASKS_BYTES), 0
        self._num_masked = start + MASK_BYTES
        return self._masks[start : start + MASK_BYTES]

    def _queue(self, frame: bytes) -> None:
        try:
            self._frames.send_nowait(frame)
            self._num_queued += 1
        except trio.WouldBlock:
            self.on_full()
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            pass  # the connection is ending; its requests are stopped with it
