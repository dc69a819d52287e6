"""Native requests behind one exchange: submitted, and read to their end.

Every choice of an answer is a native request of its own: it waits in the same queue, holds a slot,
is continued after a loss and is stopped when its client leaves, like any other. Several of one
exchange hold one place in the queue: the next is submitted when the one before has left it.

`gather` collects the steps for a whole answer. `stream` answers with server-sent events while they
come; what differs between APIs is a :class:`StreamEncoder`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

import attrs
import trio

from paddler_trio.balancer.apis.adapter_choice import with_adapters
from paddler_trio.balancer.apis.answers.answer import Step
from paddler_trio.balancer.apis.answers.step_source import StepSource
from paddler_trio.balancer.apis.api_errors import ApiError, from_problem
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.prompt_noise import normalised_work
from paddler_trio.net.server import streaming
from paddler_trio.net.server.asgi import ClientGoneError, Header
from paddler_trio.net.server.streaming import body_writer, while_client_stays
from paddler_trio.nursery_tree.request import RevisionPin
from paddler_trio.wire.trio.work import Work


@attrs.frozen
class Framing:
    """Hold what frames the pieces of a stream.

    Args:
      filler: what is sent while there is nothing to tell; it may say how things stand.
    """

    headers: Sequence[Header]
    filler: Callable[[str], bytes]


SSE: Final = Framing(streaming.HEADERS, streaming.comment)

MAX_ATTEMPTS: Final = 3
"""The attempts at a call whose revision was lost before it was answered."""
HELD_REPORT_S: Final = 2.0
"""While no slot is expected for a known reason, the client is sent the newest one so often."""


class StreamEncoder(Protocol):
    """Turns steps into the bytes of one stream; called in order, never again after the end."""

    def opening(self) -> bytes:
        """Sent with the first bytes of the body."""
        ...

    def take(self, step: Step) -> bytes:
        """Return the events of this step; may be none."""
        ...

    def closing(self) -> bytes:
        """Return the end of a stream in which every choice was ``Done``."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """Return the end of a stream that began and cannot go on."""
        ...


async def gather(
    backend: Backend,
    exchange: ApiExchange,
    works: Sequence[Work],
    take: Callable[[Step], int],
    *,
    pin: RevisionPin | None = None,
    is_repeatable: bool = False,
) -> None:
    """Run all of ``works`` to their ends, giving each step to ``take``, which returns by how many
    bytes the answer has grown: they are counted in the budget of all until it is sent. With a
    ``pin``, on one revision of the model. ``is_repeatable``: steps of one that lost its agent may
    come again.

    Errors:
      ApiError: one of them failed, or there is no room for more of the answer; the others are
        stopped.
      ClientGoneError: the client left; all are stopped.
    """

    if not is_repeatable:
        _admit_all(exchange, works)

    async def read(source: StepSource) -> None:
        while (step := await source.receive()) is not None:
            exchange.hold(take(step), backend.limits)

    await _watched(backend, exchange, works, read, pin=pin, is_repeatable=is_repeatable)


def _admit_all(exchange: ApiExchange, works: Sequence[Work]) -> None:
    """Count each answer as a request of the key, the first one having been; ApiError 429."""
    more = exchange.http.admit_more
    problem = None if more is None or len(works) < 2 else more(len(works) - 1)
    if problem is not None:
        raise from_problem(problem)


async def gather_on_one_revision(
    backend: Backend,
    exchange: ApiExchange,
    works: Sequence[Work],
    begin: Callable[[], Callable[[Step], int]],
) -> None:
    """Gather as :func:`gather` does; all are answered by one revision of the model.

    If no agent serves that one any more before all have ended, all are asked again. One that lost
    its agent is computed anew.

    Args:
      begin: what takes the steps of an attempt, empty each time; some may come again.
    """
    held_bytes = exchange.held_bytes
    for attempt in range(MAX_ATTEMPTS):
        pin = RevisionPin() if len(works) > 1 else None
        exchange.let_go(down_to=held_bytes)  # of an attempt in vain
        try:
            await gather(backend, exchange, works, begin(), pin=pin, is_repeatable=True)
        except ApiError:
            if pin is None or not pin.is_lost or attempt + 1 == MAX_ATTEMPTS:
                raise
        else:
            return


async def stream(
    backend: Backend,
    exchange: ApiExchange,
    works: Sequence[Work],
    encoder: StreamEncoder,
    *,
    keep_alive_s: float | None = None,
    is_long: Callable[[Sequence[Step]], bool] = lambda steps: False,
    held: Callable[[], int] = lambda: 0,
    framing: Framing = SSE,
) -> None:
    """Answer with server-sent events, or as ``framing`` has it, from the status to the last byte.

    The status waits for the first token, but not longer than ``limits.hold_start_s``: an early
    refusal has a status of its own. ``keep_alive_s`` replaces that of the limits; infinite for
    none. ``is_long``: whether the events of these steps, or without any those of the beginning and
    the end, are to be made off the event loop. ``held``: how many bytes the encoder keeps of the
    answer; they are counted in the budget of all.

    Errors:
      ApiError: it failed before anything was sent.
      ClientGoneError: the client left.
    """
    _admit_all(exchange, works)
    limits = backend.limits
    interval_s = limits.keep_alive_s if keep_alive_s is None else keep_alive_s
    events = _Events(exchange, encoder, limits, interval_s, is_long, held, framing)
    await _watched(backend, exchange, works, events.write_all)
    await exchange.send({"type": "http.response.body", "body": events.ending, "more_body": False})


@attrs.define(eq=False)
class _Events:
    """The events of one stream, from the reader's task or from where steps are delivered."""

    exchange: ApiExchange
    encoder: StreamEncoder
    limits: ApiLimits
    interval_s: float
    is_long: Callable[[Sequence[Step]], bool]
    held: Callable[[], int]
    framing: Framing
    ending: bytes = b""
    """The last bytes, once all others are written."""
    _counted_bytes: int = 0
    _written_s: float = attrs.field(factory=trio.current_time, init=False)
    _problem: Exception | None = None
    """The error where steps are delivered, which the reader raises."""

    async def write_all(self, source: StepSource) -> None:
        """Begin the response and write what comes, but for its ``ending``."""
        with trio.move_on_after(self.limits.hold_start_s):
            await source.look_ahead(beyond_progress=True)
        await self.exchange.begin(200, self.framing.headers)
        write = body_writer(self.exchange.http)
        waiting = b"" if source.has_steps else self.framing.filler(source.progress_text())
        await write(waiting + await self._made(self.encoder.opening))
        self._written_s = trio.current_time()
        source.write_directly(self.exchange, self._render)
        try:
            while True:
                is_over = False
                pause_s = self.interval_s
                if source.is_held:
                    pause_s = min(pause_s, HELD_REPORT_S)
                with trio.move_on_at(self._written_s + pause_s):
                    is_over = not await source.look_ahead()
                if self._problem is not None:
                    raise self._problem
                if is_over:
                    break
                steps = source.take_all()
                events = self._noted(await self._made(partial(self._events_of, steps), steps))
                if not events and trio.current_time() >= self._written_s + pause_s:
                    events = self.framing.filler(
                        source.progress_text()
                    )  # not every step has an event
                    self._written_s = trio.current_time()
                await write(events)
            self.ending = await self._made(self.encoder.closing)
        except ApiError as error:
            self.ending = self.encoder.failed(error)

    def _events_of(self, steps: Sequence[Step]) -> bytes:
        return b"".join([self.encoder.take(step) for step in steps])

    def _noted(self, events: bytes) -> bytes:
        if events:
            self._written_s = trio.current_time()
        return events

    def _count(self) -> None:
        if (grown := self.held() - self._counted_bytes) > 0:
            self.exchange.hold(grown, self.limits)
            self._counted_bytes += grown

    async def _made(self, make: Callable[[], bytes], steps: Sequence[Step] = ()) -> bytes:
        events = await self.exchange.room.off_loop(make) if self.is_long(steps) else make()
        self._count()
        return events

    def _render(self, steps: Sequence[Step]) -> bytes | None:
        """Return None for what the reader makes, and what cannot be rendered: it is raised by the
        reader, whom an empty step wakes."""
        if self.is_long(steps):
            return None
        try:
            events = self._noted(self._events_of(steps))
            self._count()
            return events  # the only way out without a problem
        except Exception as error:  # noqa: BLE001  # not in the task that delivers
            self._problem = self._problem or error
            return None


async def _watched(
    backend: Backend,
    exchange: ApiExchange,
    works: Sequence[Work],
    read: Callable[[StepSource], Awaitable[None]],
    *,
    pin: RevisionPin | None = None,
    is_repeatable: bool = False,
) -> None:
    """Submit ``works`` and ``read`` their steps while the client is connected; stop all then."""
    failure: ApiError | None = None
    is_complete = False
    works = with_adapters(works, backend.deployment.extras.adapters)
    if backend.settings.normalises_prompts:
        works = [normalised_work(work) for work in works]
    most = backend.limits.max_logprobs if len(works) > 1 else None
    source = StepSource(backend.dispatcher, backend.deployment.name, pin, is_repeatable, most)

    async def answer(choices: trio.Nursery | None) -> None:
        nonlocal failure, is_complete
        try:
            await source.submit(exchange, works, choices)
            await read(source)
        except ApiError as error:
            failure = error
        is_complete = True

    try:
        async with while_client_stays(exchange.http):
            if len(works) == 1:
                await answer(None)
            else:
                async with trio.open_nursery() as choices:
                    await answer(choices)
                    choices.cancel_scope.cancel(reason="the response is complete")
    finally:
        source.stop(exchange.room)
    if failure is not None:
        raise failure
    if not is_complete:
        raise ClientGoneError(f"client of {exchange.id} left")
