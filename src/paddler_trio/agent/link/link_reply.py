"""Answers of an agent on one connection: results of requests, and answers to questions."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import trio

from paddler_trio.agent.link.link_writer import LinkWriter
from paddler_trio.language.answers.output_processor import RawResult
from paddler_trio.wire.paddler.messages import response_line
from paddler_trio.wire.trio.cache_commands import CacheProgress
from paddler_trio.wire.trio.prompt_stages import PromptStages
from paddler_trio.wire.trio.step_frame import step_entry, step_frame
from paddler_trio.wire.trio.trio_link import Answer, Followed, HandBack, render_extension


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
