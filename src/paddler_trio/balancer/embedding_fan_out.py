"""One embedding request as several: split, sent to all agents, gathered into one stream.

Each sub-batch is a request with its own id. The body ends when all of them have, with one final
``Done`` of its own; what fails in between is a line like any other. The call holds one place in
the queue, its client's: its next sub-batch arrives there when the one before has left it, so one
call cannot fill the buffer everyone shares, and many calls of one client wait their turn.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import attrs
import trio

from paddler_trio.balancer.work_encoding import encoded
from paddler_trio.http.asgi import Header, Receive, Scope, Send
from paddler_trio.http.input_budget import Reservation
from paddler_trio.http.json_body import input_of
from paddler_trio.http.streaming import cancelled_on_disconnect
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import Request
from paddler_trio.scheduler.dispatch.embedding_split import split_sizes
from paddler_trio.scheduler.dispatch.fair_order import Priority
from paddler_trio.wire.paddler.messages import error_line, response_line
from paddler_trio.wire.paddler.request_params import GenerateEmbeddingBatchParams


@attrs.define(eq=False)
class EmbeddingFanOut:
    """One call of ``generate_embedding_batch``; ``client`` and ``priority`` are its place in the
    queue."""

    dispatcher: Dispatcher
    params: GenerateEmbeddingBatchParams
    batch_size: int
    client: str
    priority: Priority

    async def stream(
        self, scope: Scope, receive: Receive, send: Send, headers: list[Header]
    ) -> None:
        """Answer the whole request; leaving this coroutine stops every sub-batch."""
        lines, gathered = trio.open_memory_channel[bytes](0)
        async with cancelled_on_disconnect(receive) as nursery:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            nursery.start_soon(self._gather, lines, input_of(scope), name="embedding sub-batches")
            async for line in gathered:
                await send({"type": "http.response.body", "body": line, "more_body": True})
        done = response_line(None, secrets.token_urlsafe(16), {"Embedding": "Done"})
        await send({"type": "http.response.body", "body": done + b"\n"})

    async def _gather(self, lines: trio.MemorySendChannel[bytes], room: Reservation) -> None:
        async with lines, trio.open_nursery() as nursery:
            for chunk in self._chunks():
                work = await encoded(chunk, room)
                request = self.dispatcher.submit(
                    secrets.token_urlsafe(16), work, client=self.client, priority=self.priority
                )
                nursery.start_soon(self._copy, request, lines, name="embedding sub-batch")
                await request.left_queue.wait()

    def _chunks(self) -> Iterator[GenerateEmbeddingBatchParams]:
        start = 0
        for size in split_sizes(
            len(self.params.input_batch),
            agents=len(self.dispatcher.agents),
            batch_size=self.batch_size,
        ):
            documents = self.params.input_batch[start : start + size]
            start += size
            yield attrs.evolve(self.params, input_batch=documents)

    async def _copy(self, request: Request, lines: trio.MemorySendChannel[bytes]) -> None:
        """The lines of one sub-batch, without its own ``Done``."""
        try:
            async for step in request.outbox:
                for result in step.results:
                    if result != "Done":
                        response = {step.family: result}
                        line = response_line(step.generated_by, request.id, response)
                        await lines.send(line + b"\n")
            if request.failure is not None:
                failure = request.failure
                line = error_line(request.id, failure.code, failure.description)
                await lines.send(line + b"\n")
        finally:
            request.stop()
