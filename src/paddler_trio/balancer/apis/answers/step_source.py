"""The steps of the native requests of one exchange, in the order in which they came."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import attrs
import trio

from paddler_trio.balancer.activity.deadlines import expected_start_s
from paddler_trio.balancer.agents.direct_results import DirectResults, send_directly
from paddler_trio.balancer.agents.ready_steps import StepReader, ready_steps
from paddler_trio.balancer.agents.retry_advice import retry_advice
from paddler_trio.balancer.agents.work_encoding import encoded
from paddler_trio.balancer.apis.answers.answer import Step, top_of
from paddler_trio.balancer.apis.api_errors import ApiError, from_failure, from_problem, from_result
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.ignored_fields import IgnoredFields
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.input_budget import Reservation
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import Request, RevisionPin
from paddler_trio.nursery_tree.step_results import NOTHING, Results
from paddler_trio.telemetry.trace_context import trace_of
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT
from paddler_trio.wire.trio.work import Work

MAX_REASON_CHARS: Final = 200


def _is_progress(step: Step) -> bool:
    """It has nothing but how far a prompt is."""
    return not step.tokens and all(
        isinstance(result, Mapping) and "Progress" in result for result in step.results
    )


@attrs.define(eq=False, repr=False)
class StepSource:
    """The steps of several native requests, in the order in which they came.

    ``max_logprobs``: more log probabilities of all of them are an error; None for no limit.
    """

    dispatcher: Dispatcher
    deployment: str = DEFAULT_DEPLOYMENT
    pin: RevisionPin | None = None
    is_repeatable: bool = False
    max_logprobs: int | None = None
    _exchange: ApiExchange | None = attrs.field(default=None, init=False)
    """The one to tell which revision answers."""
    _ignored: IgnoredFields | None = attrs.field(default=None, init=False)
    _num_logprobs: int = attrs.field(default=0, init=False)
    _requests: list[Request] = attrs.field(factory=list, init=False)
    _progress: dict[int, Mapping[str, object]] = attrs.field(factory=dict, init=False)
    _ahead: list[Step] = attrs.field(factory=list, init=False)
    _error: ApiError | None = attrs.field(default=None, init=False)
    _direct: DirectResults | None = attrs.field(default=None, init=False)
    _merged: trio.MemoryReceiveChannel[list[Step] | ApiError] | None = attrs.field(
        default=None, init=False
    )

    def __repr__(self) -> str:
        ended = sum(request.is_over for request in self._requests)
        return (
            f"<StepSource of {len(self._requests)} requests, {ended} ended: "
            f"{len(self._ahead)} steps ahead, {self.progress_text()}>"
        )

    @property
    def has_steps(self) -> bool:
        return bool(self._ahead)

    @property
    def is_held(self) -> bool:
        """One waits for a slot, and it is known why there is none."""
        return any(
            not request.left_queue.is_set() and self.dispatcher.pools.hold_of(request) is not None
            for request in self._requests
        )

    async def submit(
        self, exchange: ApiExchange, works: Sequence[Work], nursery: trio.Nursery | None
    ) -> None:
        """Submit a single one now; several one after the other in ``nursery``, as their turns come.

        Errors:
          HttpProblem: 503 without room for it.
        """
        self._exchange, self._ignored = exchange, exchange.ignored
        if nursery is None:
            (work,) = works
            await self._submit(exchange, work)
        else:
            into, self._merged = trio.open_memory_channel[list[Step] | ApiError](0)
            nursery.start_soon(self._feed, exchange, works, into, nursery, name="choices")

    def stop(self, room: Reservation) -> None:
        """All of them have ended, or are to; ``room`` has again what their work held of it."""
        self._direct = None
        for request in self._requests:
            request.stop()
            room.shrink(request.forget_work())

    def write_directly(
        self, exchange: ApiExchange, render: Callable[[Sequence[Step]], bytes | None]
    ) -> None:
        """Have steps of a single request written where they are delivered, while nothing is ahead
        of them; the response has begun. What ``render`` returns None for ends the waiting."""

        def text_of(results: Results) -> bytes | None:
            if results.results and from_result(results.results[-1]) is not None:
                return None  # the reader ends the stream with it
            step, _ = self._split(0, results)
            return b"" if step is None else render([step])

        if self._merged is None:
            (request,) = self._requests
            self._direct = send_directly(exchange.http, request, text_of)

    def progress_text(self) -> str:
        """Return the state of the first one that has not ended, in one line for a comment."""
        for choice, request in enumerate(self._requests):
            if request.is_over:
                continue
            ahead = self.dispatcher.pools.position(request)
            if ahead is not None:
                held = self.dispatcher.pools.hold_of(request)
                why = "" if held is None else f" {_in_one_line(held.reason)}"
                start_s = expected_start_s(self.dispatcher.pools, request)
                when = "" if start_s is None else f" expected_start_s={start_s:.1f}"
                return f"queued position={ahead}{when}{why}"
            if choice in self._progress and not request.tokens:
                progress = self._progress[choice]
                done = progress.get("computed"), progress.get("total")
                return f"prefilling tokens={done[0]}/{done[1]}"
        return "working"

    async def receive(self) -> Step | None:
        """Return the next step; None when all have ended. ApiError if one of them failed."""
        if not await self.look_ahead():
            return None
        return self._ahead.pop(0)

    async def look_ahead(self, *, beyond_progress: bool = False) -> bool:
        """Wait until there is a step, or something is to be sent that was not sent directly; False
        when there will be nothing. Loses nothing if cancelled.

        Args:
          beyond_progress: the step must have more than how far a prompt is.

        Errors:
          ApiError: one of the requests failed.
        """
        while not self._ahead or (beyond_progress and all(map(_is_progress, self._ahead))):
            if self._error is not None:
                raise self._error
            if self._merged is None:
                try:
                    results = await self._next_results()
                except trio.EndOfChannel:
                    self._error = self._failure_of(self._requests[0])
                    if self._error is None:
                        return False
                else:
                    if results is NOTHING:
                        return True
                    self._add(0, results)
            else:
                try:
                    item = await self._merged.receive()
                except trio.EndOfChannel:
                    return False
                if isinstance(item, ApiError):
                    self._error = item
                else:
                    self._ahead += item
        return True

    async def _next_results(self) -> Results:
        """EndOfChannel after the last ones."""
        outbox, direct = self._requests[0].outbox, self._direct
        if direct is None:
            return await outbox.receive()
        direct.consumer_waits()
        try:
            return await outbox.receive()
        finally:
            direct.consumer_works()

    def take_all(self) -> list[Step]:
        """Take all steps that have arrived, up to a limit."""
        if self._merged is None and self._error is None:
            for results in ready_steps(self._requests[0], after=len(self._ahead)):
                self._add(0, results)
        steps, self._ahead = self._ahead, []
        return steps

    # --------------------------------------------------------------------- inside

    async def _submit(self, exchange: ApiExchange, work: Work) -> Request:
        encoded_work = await encoded(work, exchange.room, is_large=exchange.is_large)
        number = len(self._requests)
        request_id = f"{exchange.id}.{number}" if number else exchange.id
        request = self.dispatcher.submit(
            request_id,
            encoded_work,
            client=exchange.client,
            priority=exchange.priority,
            deployment=self.deployment,
            preset="" if exchange.preset is None else exchange.preset.preset.name,
            pin=self.pin,
            route=exchange.http.path,
            trace=trace_of(exchange.http),
            user=exchange.user,
            account=exchange.http.identity.account,
            is_repeatable=self.is_repeatable,
        )
        self._requests.append(request)
        return request

    async def _feed(
        self,
        exchange: ApiExchange,
        works: Sequence[Work],
        into: trio.MemorySendChannel[list[Step] | ApiError],
        nursery: trio.Nursery,
    ) -> None:
        async with into:
            for choice, work in enumerate(works):
                try:
                    request = await self._submit(exchange, work)
                except HttpProblem as problem:
                    await into.send(from_problem(problem))
                    return
                copy = partial(self._copy, exchange, choice, request, into.clone())
                nursery.start_soon(copy, name="choice")
                await request.left_queue.wait()
                if request.failure is not None:
                    return

    async def _copy(
        self,
        exchange: ApiExchange,
        choice: int,
        request: Request,
        into: trio.MemorySendChannel[list[Step] | ApiError],
    ) -> None:
        """Pass on all steps that are ready at a time: one at a time, they would come faster than
        they are taken, and wait as objects."""
        async with into:
            async for ready in StepReader(request):
                steps, error = list[Step](), None
                for results in ready:
                    step, error = self._split(choice, results)
                    if step is not None:
                        steps.append(step)
                    if error is not None:
                        break
                if steps:
                    await into.send(steps)
                if error is not None:
                    await into.send(error)
            exchange.room.shrink(request.forget_work())  # each has a copy of what all of them say
            failure = self._failure_of(request)
            if failure is not None:
                await into.send(failure)

    def _add(self, choice: int, step_results: Results) -> None:
        step, self._error = self._split(choice, step_results)
        if step is not None:
            self._ahead.append(step)

    def _split(self, choice: int, step_results: Results) -> tuple[Step | None, ApiError | None]:
        """An ending that is no ``Done`` is taken out: it can only be the last of its step."""
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.revision = self._requests[choice].revision
            exchange.placement = self._requests[choice].choice
            exchange.on_revision()
        results = step_results.results
        error = from_result(results[-1]) if results else None
        if error is not None:
            results = results[:-1]
        for result in results:
            match result:
                case {"Progress": dict(progress)}:
                    self._progress[choice] = progress
                    if self._ignored is not None and "unbound" in progress:
                        self._ignored.unbound(progress["unbound"])
                case {"Logprobs": dict(entry)}:
                    self._num_logprobs += 1 + len(top_of(entry))
        if self.max_logprobs is not None and self._num_logprobs > self.max_logprobs:
            error = error or _too_many_logprobs(self.max_logprobs)
        step = (
            Step(choice, results, step_results.tokens) if results or step_results.tokens else None
        )
        return step, error

    def _failure_of(self, request: Request) -> ApiError | None:
        if request.failure is None:
            return None
        advice = retry_advice(self.dispatcher.pools, request.failure, self.deployment)
        return from_failure(request.failure, advice)


def _too_many_logprobs(limit: int) -> ApiError:
    return ApiError(
        400,
        f"the choices have more log probabilities together than the limit max_logprobs ({limit}): "
        "ask for fewer choices, tokens or alternatives",
        param="n",
        code="answer_too_long",
    )


def _in_one_line(reason: str) -> str:
    return " ".join(reason.split())[:MAX_REASON_CHARS]
