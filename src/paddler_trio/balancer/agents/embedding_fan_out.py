"""One embedding request as several: split, sent to all agents, gathered into one stream.

Each sub-batch is a request with its own id. The body ends when all of them have, with one final
``Done`` of its own; what fails in between is a line like any other. The call holds one place in
the queue, its client's: its next sub-batch arrives there when the one before has left it, so one
call cannot fill the buffer everyone shares, and many calls of one client wait their turn. A client
that reads slowly makes its own call wait: what was answered for it is held here.

All sub-batches of a call are answered by one revision of the model. If no agent serves that one any
more, the whole call is asked again of another, as long as no vector of it has been sent; else what
is left fails with a line that names the revision.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Final

import attrs
import trio

from paddler_trio.balancer.agents.work_encoding import encoded
from paddler_trio.net.server.asgi import Header, HttpProblem
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.input_budget import Reservation
from paddler_trio.net.server.json_body import input_of
from paddler_trio.net.server.streaming import cancelled_on_disconnect
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import Request, RevisionPin
from paddler_trio.scheduler.dispatch.embedding_split import split_sizes
from paddler_trio.scheduler.dispatch.fair_order import Priority
from paddler_trio.wire.paddler.messages import error_line, response_line
from paddler_trio.wire.paddler.request_params import GenerateEmbeddingBatchParams
from paddler_trio.wire.trace_parent import TraceContext
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

MAX_ATTEMPTS: Final = 3
"""Of a call of which nothing has been sent."""
MAX_UNREAD: Final = 4
"""Sub-batches that were answered, and are not with the client; vectors are large."""


@attrs.define(eq=False)
class EmbeddingFanOut:
    """One call of ``generate_embedding_batch``; ``client`` and ``priority`` are its place in the
    queue, ``user`` shares it with
    others of the client, ``account`` pays, ``id`` and ``trace`` its names in logs and traces."""

    dispatcher: Dispatcher
    params: GenerateEmbeddingBatchParams
    batch_size: int
    client: str
    priority: Priority
    id: str
    trace: TraceContext
    user: str = ""
    account: str = ""
    _copied: set[Request] = attrs.field(factory=set, init=False)
    """Sub-batches that have left the queue, or are in it, and are not with the client."""
    _was_read: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _num_submitted: int = attrs.field(default=0, init=False)
    _num_attempts: int = attrs.field(default=0, init=False)
    _is_in_vain: bool = attrs.field(default=False, init=False)
    """This attempt's revision is gone."""
    _has_lines: bool = attrs.field(default=False, init=False)
    """Something of the answer is on its way to the client."""

    async def stream(self, exchange: Exchange, headers: list[Header]) -> None:
        """Answer the whole request; leaving this coroutine stops every sub-batch."""
        lines, gathered = trio.open_memory_channel[bytes](0)
        async with cancelled_on_disconnect(exchange) as nursery:
            await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
            nursery.start_soon(
                self._gather, lines, input_of(exchange), name="embedding sub-batches"
            )
            async for line in gathered:
                await exchange.send({"type": "http.response.body", "body": line, "more_body": True})
        done = response_line(None, secrets.token_urlsafe(16), {"Embedding": "Done"})
        await exchange.send({"type": "http.response.body", "body": done + b"\n"})

    async def _gather(self, lines: trio.MemorySendChannel[bytes], room: Reservation) -> None:
        async with lines:
            while await self._is_lost(lines, room):
                pass

    async def _is_lost(self, lines: trio.MemorySendChannel[bytes], room: Reservation) -> bool:
        """Ask for all of it; True if it was in vain and must be asked again."""
        self._num_attempts += 1
        self._is_in_vain = False
        pool = self.dispatcher.pools.find(DEFAULT_DEPLOYMENT)
        sizes = split_sizes(
            len(self.params.input_batch),
            agents=1 if pool is None else max(1, len(pool.agents)),
            batch_size=self.batch_size,
        )
        pin = RevisionPin() if len(sizes) > 1 else None
        with trio.CancelScope() as attempt:
            async with trio.open_nursery() as nursery:
                for chunk in self._chunks(sizes):
                    try:
                        work = await encoded(chunk, room)
                    except HttpProblem as problem:  # the status is on its way
                        self._has_lines = True
                        line = error_line(self._next_id(), problem.status, problem.text)
                        await lines.send(line + b"\n")
                        break
                    request = self.dispatcher.submit(
                        self._next_id(),
                        work,
                        client=self.client,
                        priority=self.priority,
                        pin=pin,
                        route="/api/v1/generate_embedding_batch",
                        trace=self.trace,
                        user=self.user,
                        account=self.account,
                    )
                    self._copied.add(request)
                    nursery.start_soon(
                        self._copy, request, lines, room, attempt, name="embedding sub-batch"
                    )
                    await request.left_queue.wait()
                    while sum(each.is_over for each in self._copied) > MAX_UNREAD:
                        await self._was_read.park()
        return self._is_in_vain

    def _next_id(self) -> str:
        number = self._num_submitted
        self._num_submitted += 1
        return f"{self.id}.{number}" if number else self.id

    def _chunks(self, sizes: list[int]) -> Iterator[GenerateEmbeddingBatchParams]:
        start = 0
        for size in sizes:
            documents = self.params.input_batch[start : start + size]
            start += size
            yield attrs.evolve(self.params, input_batch=documents)

    async def _copy(
        self,
        request: Request,
        lines: trio.MemorySendChannel[bytes],
        room: Reservation,
        attempt: trio.CancelScope,
    ) -> None:
        """Copy the lines of one sub-batch, without its own ``Done``; or the end of the attempt."""
        try:
            async for step in request.outbox:
                for result in step.results:
                    if result != "Done":
                        response = {step.family: result}
                        line = response_line(step.generated_by, request.id, response)
                        self._has_lines = True
                        await lines.send(line + b"\n")
            if request.failure is not None:
                failure = request.failure
                is_pin_lost = request.pin is not None and request.pin.is_lost
                if is_pin_lost and not self._has_lines and self._num_attempts < MAX_ATTEMPTS:
                    self._is_in_vain = True
                    attempt.cancel(reason="the revision that it was begun with is gone")
                    return
                self._has_lines = True
                line = error_line(request.id, failure.code, failure.description)
                await lines.send(line + b"\n")
        finally:
            request.stop()
            room.shrink(request.forget_work())
            self._copied.discard(request)
            self._was_read.unpark_all()
