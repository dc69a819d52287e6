"""Answers of an agent on one connection: results of requests, and answers to questions.

Send frames to a balancer: at once where nothing is in the way, else through a queue.

A frame that goes through a queue costs a wake-up and a turn of the event loop, which is more than
all else that an agent does for a token. So as long as the balancer reads, the results of a pass are
written where they are made, in one call that does not wait. What the kernel has no room for waits
in the queue, in order, and so does everything over TLS.

Protocols of what a link to a balancer needs of an agent, whether that runs models or stands in
front of a server that does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs
import trio
import trio_websocket

from paddler_trio.agent.model.store_first import StoreAddress
from paddler_trio.errors import LinkError
from paddler_trio.language.answers.output_processor import RawResult
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.paddler.desired_state import AgentDesiredState
from paddler_trio.wire.paddler.messages import (
    GetChatTemplateOverride,
    GetModelMetadata,
    response_line,
)
from paddler_trio.wire.trio.cache_commands import CacheProgress
from paddler_trio.wire.trio.desired_state_extras import Extras
from paddler_trio.wire.trio.fit_messages import AskFit
from paddler_trio.wire.trio.operations.operator_orders import Operate
from paddler_trio.wire.trio.prompt_stages import PromptStages
from paddler_trio.wire.trio.request_frame import RequestFrame, step_entry, step_frame
from paddler_trio.wire.trio.trio_link import Answer, Cache, Followed, HandBack, render_extension
from paddler_trio.wire.websocket_text import MASK_BYTES, masked_frame

SEND_BYTES = 256 * 1024
"""The bytes sent at once: encrypting that much takes 0.07 ms."""
MAX_HANDSHAKE_BYTES = 65536
"""A WebSocket's handshake, or a page with the refusal; a library keeps all of it."""


@attrs.define(eq=False)
class DialledStream(trio.abc.Stream):
    """A stream that gives up a peer which talks much and agrees on nothing.

    ``is_agreed`` is set when the handshake is over: from then on messages have limits of their own.

    Without TLS bytes can also be written without waiting. What the kernel did not take then, or
    what a cancelled ``send_all`` left, goes out before anything else: no message is cut by another.
    """

    _stream: trio.abc.Stream
    is_agreed: bool = attrs.field(default=False, init=False)
    _num_bytes: int = attrs.field(default=0, init=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _unsent: memoryview = attrs.field(default=memoryview(b""), init=False)

    @property
    def has_unsent(self) -> bool:
        """Return whether something was left: await a ``send_all`` soon, of nothing if need be."""
        return bool(self._unsent)

    def write_now(self, data: bytes) -> bool:
        """Write without waiting, or keep what the kernel did not take.

        Returns:
          Whether ``data`` is on its way. If not, nothing of it was written: the stream is
          encrypted, broken, or something else is being written.
        """
        if not isinstance(self._stream, trio.SocketStream) or self._unsent or self._turn.locked():
            return False
        try:
            sent_bytes = os.write(self._stream.socket.fileno(), data)
        except BlockingIOError:
            sent_bytes = 0
        except OSError:  # the next `send_all` meets it, too
            return False
        if sent_bytes < len(data):
            self._unsent = memoryview(data)[sent_bytes:]
        return True

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if isinstance(self._stream, trio.SocketStream):
            await self._send_to(self._stream.socket, data)
        elif len(data) <= SEND_BYTES:
            await self._stream.send_all(data)
        else:
            with memoryview(data) as view:
                for start in range(0, len(view), SEND_BYTES):
                    await self._stream.send_all(view[start : start + SEND_BYTES])

    async def _send_to(
        self, socket: trio.socket.SocketType, data: bytes | bytearray | memoryview
    ) -> None:
        async with self._turn:
            self._unsent = memoryview(b"".join((self._unsent, data)))
            try:
                while self._unsent:
                    sent_bytes = await socket.send(self._unsent)  # all or nothing, if cancelled
                    self._unsent = self._unsent[sent_bytes:]
            except OSError as error:
                raise trio.BrokenResourceError(f"the socket broke: {error}") from error

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Return received bytes; LinkError when there was too much before the handshake was
        over."""
        data = await self._stream.receive_some(max_bytes)
        if not self.is_agreed:
            self._num_bytes += len(data)
            if self._num_bytes > MAX_HANDSHAKE_BYTES:
                raise LinkError(
                    f"more than {MAX_HANDSHAKE_BYTES} bytes and no WebSocket: this is no balancer"
                )
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()


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


@attrs.define(eq=False)
class LinkReply:
    """The frames that answer what came in on one connection.

    Args:
      publish: queues the status, if it changed.
    """

    writer: LinkWriter
    speaks_trio: bool
    publish: Callable[[], None]
    last_result_s: float = attrs.field(default=-math.inf, init=False)
    """The time at which the newest result for Paddler's balancer was queued."""
    _large_frames: trio.MemorySendChannel[bytes] = attrs.field(init=False)
    _outgoing_large: trio.MemoryReceiveChannel[bytes] = attrs.field(init=False)
    _step: list[bytes] = attrs.field(factory=list, init=False)
    """The output of one pass of the engine so far: entries of one frame, or frames."""

    def __attrs_post_init__(self) -> None:
        self._large_frames, self._outgoing_large = trio.open_memory_channel[bytes](0)

    def __repr__(self) -> str:
        return f"<LinkReply: {self.writer.num_unsent} frames unsent>"

    def results(
        self,
        wire_id: str,
        tokens: list[int],
        results: list[RawResult],
        prompt: PromptStages | None = None,
        preemptions: int = 0,
    ) -> None:
        """Add these results to what the next :meth:`flush` sends.

        ``prompt`` says how the prompt was computed, once, with the first results; ``preemptions``
        is their number so far, alone when there is one more, and with the ending.
        """
        if self.speaks_trio:
            self._step.append(step_entry(wire_id, tokens, results, prompt, preemptions))
        else:
            self.last_result_s = trio.current_time()
            for result in results:
                self._step.append(response_line(None, wire_id, {"GeneratedToken": result}))

    def flush(self) -> None:
        """Send everything of one engine pass, as one frame to a balancer of ours."""
        if self._step:
            entries, self._step = self._step, []
            if self.speaks_trio:
                self.writer.send(step_frame(entries))
            else:
                self.writer.send(*entries)

    def respond(self, wire_id: str, response: object) -> None:
        """Queue Paddler's response, as one frame of its own."""
        self.last_result_s = trio.current_time()
        self.writer.send(response_line(None, wire_id, response))

    def refuse(self, wire_id: str, problem: object) -> None:
        """Send that the request is malformed, and why."""
        self.results(wire_id, [], [{"SamplerError": f"malformed request: {problem}"}])
        self.flush()

    def answer(self, answer: Answer) -> None:
        """Queue the answer to a question or a command."""
        self.writer.send(render_extension(answer))

    def progress(self, progress: CacheProgress) -> None:
        """Queue how far a command about the cache is."""
        self.writer.send(render_extension(progress))

    async def send_large(self, frame: bytes) -> None:
        """Send a frame that is large, or one of many.

        It waits for those before it, so that embeddings never fill the queue that all requests
        share.
        """
        await self._large_frames.send(frame)
        self.last_result_s = trio.current_time()

    async def write_large(self) -> None:
        """Write what ``send_large`` is called with, for as long as the connection lasts."""
        async with self._outgoing_large:
            async for frame in self._outgoing_large:
                await self.writer.socket.send_message(frame.decode())

    def acknowledge(self, wire_id: str, model: str | None = None) -> None:
        """Send an entry without tokens and results; nothing to a balancer of Paddler's.

        ``model`` is the fingerprint of the model, once the request is prepared.
        """
        if self.speaks_trio:
            self._step.append(step_entry(wire_id, [], [], model=model))
            self.flush()

    def hand_back(self, wire_id: str, reason: str, *, suspects: int | None) -> None:
        """Return a request to the balancer, for another agent.

        The status goes first: the balancer must learn that there are no slots now. ``suspects``
        is None if no engine died.
        """
        self.publish()
        died = suspects is not None
        self.writer.send(render_extension(HandBack(wire_id, reason, died, suspects)))

    def followed(self) -> None:
        """Queue that the agent is registered with the successor of this balancer."""
        self.writer.send(render_extension(Followed()))

    async def sent(self) -> None:
        """Wait until every frame queued before this call was sent."""
        await self.writer.sent()


class LinkModels(Protocol):
    """Follows the desired state."""

    @property
    def metadata(self) -> Mapping[str, str] | None:
        """The metadata of the model that is served."""
        ...

    @property
    def judges_beside(self) -> bool:
        """Return whether it can be asked whether it would load a model beside the one in force."""
        ...

    @property
    def desired(self) -> AgentDesiredState | None: ...

    def set_desired(self, desired: AgentDesiredState, extras: Extras = ...) -> None: ...

    def set_store(self, store: StoreAddress | None) -> None: ...


class LinkRequests(Protocol):
    """The part of an agent that does what the balancer asks, and answers on the connection that it
    was asked over."""

    def work(self, frame: RequestFrame, reply: LinkReply) -> None:
        """Work on a generation, an embedding or a question."""
        ...

    def ask_fit(self, question: AskFit, reply: LinkReply) -> None: ...

    def operate(self, operate: Operate, reply: LinkReply) -> None:
        """Carry out an order of an operator."""
        ...

    def command_cache(self, command: Cache, reply: LinkReply) -> None: ...

    def open_tunnel(self, secret: str, reply: LinkReply) -> None: ...

    def stop(self, wire_id: str, reply: LinkReply) -> None: ...

    def stop_all_of(self, reply: LinkReply) -> None: ...


def paddlers_answer(
    models: LinkModels, query: GetModelMetadata | GetChatTemplateOverride
) -> Mapping[str, Mapping[str, Mapping[str, str] | str] | None]:
    """Return the answer to one of the questions that Paddler's protocol has."""
    match query:
        case GetModelMetadata():
            metadata = models.metadata
            return {"ModelMetadata": None if metadata is None else {"metadata": metadata}}
        case GetChatTemplateOverride():
            override = None if models.desired is None else models.desired.chat_template_override
            template = None if override is None else {"content": override.content}
            return {"ChatTemplateOverride": template}
