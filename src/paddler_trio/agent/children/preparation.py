"""Everything about language that happens before the engine, in killable processes.

A job has a worker of its own while it lasts. A worker whose job was cancelled, took too long, or
ended it, is killed; the others do the next job. So a request that overloads a template, a grammar
or an image decoder fails alone, and no work of it is left when its client is gone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol, TypeAlias

import attrs
import structlog
import trio

from paddler_trio.agent.children.preparation_server import (
    LanguageRefusedError,
    PreparationServer,
    PreparationWorker,
    WorkerDiedError,
)
from paddler_trio.errors import PreparationError, WireError, leaves
from paddler_trio.language.language_source import LanguageSource
from paddler_trio.processes.preparation.preparation_messages import (
    Job,
    LanguageFacts,
    LanguageRefused,
    Prepared,
    refused,
)
from paddler_trio.system.fair_places import FairPlaces
from paddler_trio.system.synchronization import Changes, Future
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.trio.request_frame import RequestFrame

log = structlog.get_logger("preparation")

REQUEST_PLACES = 10
RENDERED_PLACES = 8
"""The part of these places for what a template may render: a slow one leaves places to prompts that
need none."""
QUESTION_PLACES = 2
IDLE_WORKERS = 4
LOWER_PRIORITY_AFTER_S = 0.1
LOW_PRIORITY = 15
"""Niceness of a worker whose job turned out to be a long one."""
WALL_LIMIT_S = 60.0


@attrs.define(eq=False)
class Preparation:
    """The workers of one fork server. Ends with it: then every job raises PreparationError."""

    server: PreparationServer
    facts: LanguageFacts
    _num_jobs: int = attrs.field(default=0, init=False)
    _jobs_changed: Changes = attrs.field(factory=Changes, init=False)
    _idle: list[PreparationWorker] = attrs.field(factory=list, init=False)
    _requests: FairPlaces = attrs.field(init=False)
    _rendered: FairPlaces = attrs.field(init=False)
    _questions: FairPlaces = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._requests = FairPlaces(REQUEST_PLACES, share=REQUEST_PLACES // 2)
        self._rendered = FairPlaces(RENDERED_PLACES, share=RENDERED_PLACES // 2)
        self._questions = FairPlaces(QUESTION_PLACES, share=QUESTION_PLACES // 2)

    def __repr__(self) -> str:
        return f"<Preparation: {self._num_jobs} jobs, {len(self._idle)} idle workers>"

    @property
    def parameters(self) -> InferenceParameters:
        return self.facts.parameters

    async def prepare(self, job: Job, *, client: str) -> Prepared:
        """Return the input of the engine, or an answer; PreparationError if the fork server is
        gone.

        Cancellation: the worker is killed at once.
        """
        self._num_jobs += 1
        try:
            async with AsyncExitStack() as held:
                for places in self._places(job.frame):
                    await held.enter_async_context(places.held_by(client))
                return await self._prepare(job)
        finally:
            self._num_jobs -= 1
            self._jobs_changed.notify()

    def close(self) -> None:
        """Release the workers of a fork server that has ended."""
        while self._idle:
            self._idle.pop().kill()

    async def wait_idle(self) -> None:
        """Return when no job is left."""
        ordinal = self._jobs_changed.ordinal
        while self._num_jobs:
            ordinal = await self._jobs_changed.wait_beyond(ordinal)

    async def _prepare(self, job: Job) -> Prepared:
        worker = self._idle_worker() or await self.server.fork()
        try:
            prepared = await self._done(worker, job)
        except (WorkerDiedError, WireError) as error:
            worker.kill()
            if not self.server.is_running:
                raise PreparationError("the preparation server is gone") from error
            log.warning("a request ended its preparation process", reason=str(error))
            return refused(
                job,
                400,
                "the process that prepared this request ended: it took more memory or time than "
                "one request may, or a decoder crashed; send a smaller or simpler one",
            )
        except BaseException:
            worker.kill()
            raise
        if worker.is_reusable and self.server.is_running and len(self._idle) < IDLE_WORKERS:
            self._idle.append(worker)
        else:
            worker.kill()
        return prepared

    def _idle_worker(self) -> PreparationWorker | None:
        """Return a worker that lives, if there is any: no request is to blame for one that ended
        before it."""
        while self._idle:
            worker = self._idle.pop()
            if not worker.has_ended:
                return worker
            worker.kill()
        return None

    async def _done(self, worker: PreparationWorker, job: Job) -> Prepared:
        with trio.move_on_after(WALL_LIMIT_S):
            await worker.give(job)
            with trio.move_on_after(LOWER_PRIORITY_AFTER_S):
                return (await worker.take()).prepared
            worker.lower_priority(LOW_PRIORITY)
            return (await worker.take()).prepared
        worker.is_reusable = False
        return refused(
            job,
            400,
            f"preparing this request took longer than {WALL_LIMIT_S:g} s; send a smaller one",
        )

    def _places(self, frame: RequestFrame) -> Sequence[FairPlaces]:
        """Return the places of which it needs one each, in this order."""
        if frame.kind == "question":
            return (self._questions,)
        return (self._requests,) if frame.is_raw else (self._rendered, self._requests)


SupervisePreparation: TypeAlias = Callable[
    [Callable[[], Awaitable[None]], Callable[[BaseException], None]], Awaitable[None]
]
"""``(run, on_crash)``: run again after each PreparationError; returns when ``run`` does."""


@attrs.define(eq=False)
class PreparationKeeper:
    """All lives of the preparation processes of one language.

    Args:
      on_up, on_down: called at the start and the end of each life; synchronous.
      is_beside: another model or language answers until this one is up for the first time.
    """

    source: LanguageSource
    supervise: SupervisePreparation
    on_up: Callable[[Preparation], None]
    on_down: Callable[[Preparation], None]
    on_crash: Callable[[BaseException], None]
    is_beside: bool = False
    first_start: Future[Preparation | LanguageRefused] = attrs.field(factory=Future, init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    current: Preparation | None = attrs.field(default=None, init=False)
    """The life that is up now."""
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    async def run(self) -> None:
        """Run until stopped, or until the language cannot be read any more."""
        try:
            with self._scope:
                await self.supervise(self._live, self.on_crash)
        finally:
            self.ended.set()

    async def stop(self) -> None:
        """End the processes, once those that are at work have finished."""
        if self.current is not None:
            await self.current.wait_idle()
        self._scope.cancel(reason="another language is wanted")
        await self.ended.wait()

    async def _live(self) -> None:
        """Run one life; PreparationError if it ends by itself."""

        def up(server: PreparationServer, facts: LanguageFacts) -> None:
            self.current = Preparation(server, facts)
            self.on_up(self.current)
            self.first_start.set(self.current)

        server = PreparationServer(
            self.source, up, gives_way=self.is_beside and self.first_start.value is None
        )
        try:
            await server.run()
        except* LanguageRefusedError as group:
            refused = next(e for e in leaves(group) if isinstance(e, LanguageRefusedError)).refused
            if not self.first_start.set(refused):
                raise PreparationError(
                    f"the language cannot be read again: {refused.reason}"
                ) from None
        finally:
            current, self.current = self.current, None
            if current is not None:
                current.close()
                self.on_down(current)


class TurnReply(Protocol):
    """The connection that a request came in on, where its turn is announced."""

    def acknowledge(self, wire_id: str) -> None: ...

    async def sent(self) -> None: ...


@attrs.define(eq=False)
class PreparationTurns:
    """One for all requests of an agent."""

    _one: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @asynccontextmanager
    async def turn(self, frame: RequestFrame, reply: TurnReply) -> AsyncIterator[None]:
        """Prepare the request inside of the block. If it may have crashed an agent, its turn is
        announced to the balancer first: if this agent crashes too, the balancer knows the cause."""
        if frame.isolated != "agent":
            yield
            return
        async with self._one:
            reply.acknowledge(frame.id)
            await reply.sent()
            yield
