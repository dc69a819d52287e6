"""Questions to one agent over its link, and commands: each waits for its answer.

Only kinds that answer questions are asked more than what Paddler's protocol has. The ids are ours,
unique on the link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from paddler_trio.errors import LinkError, PaddlerError
from paddler_trio.system.fair_places import FairPlaces
from paddler_trio.system.synchronization import Future
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.paddler.desired_state import DesiredModel, applicable_state
from paddler_trio.wire.paddler.messages import StopRespondingTo, render
from paddler_trio.wire.trio.cache_commands import CacheProgress, CacheRequest, Pull
from paddler_trio.wire.trio.fit_messages import AskFit, FitQuestion
from paddler_trio.wire.trio.operations.operator_orders import Operate, Order
from paddler_trio.wire.trio.trio_link import (
    MAX_FRAME_BYTES,
    Answer,
    Cache,
    GetTree,
    render_extension,
)

QUESTIONS_AT_ONCE = 48
"""To the model of one agent, which refuses more than 64; the others wait here, clients in turns.
All that waited for a model would be asked when it is there."""
QUESTIONS_OF_ONE_CLIENT = QUESTIONS_AT_ONCE // 2
COMMAND_BEGINS_S = 10.0
"""An agent that works on a command reports at once that it does."""
COMMAND_SILENCE_S = 600.0
"""Longer than any part of a command that shows no progress: listing and removing."""


class AgentDisconnectedError(LinkError):
    """The connection of an agent is over: it may be back in a moment, on another one."""


class QuestionRefusedError(PaddlerError):
    """The agent has no answer; ``code`` mirrors HTTP status numbers, ``problem`` is the reason."""

    def __init__(self, code: int, problem: str) -> None:
        super().__init__(f"{code} {problem}")
        self.code = code
        self.problem = problem


@attrs.define(eq=False, repr=False)
class AgentQuestions:
    """See the module docstring.

    Args:
      label: of the agent, for errors.
      send: a frame over its link.
      is_extended: it can be told that an answer is not wanted any more.
      judges_beside: it says whether it would load a model beside the one in force.
    """

    label: str
    send: Callable[[bytes], None]
    is_extended: bool
    judges_beside: bool
    asked_models: Counter[DesiredModel] = attrs.field(factory=Counter, init=False)
    """Models that it was just told to fetch, or to judge, whatever is desired."""
    _queries: dict[str, Future[object]] = attrs.field(factory=dict, init=False)
    _progress: dict[str, Callable[[CacheProgress], None]] = attrs.field(factory=dict, init=False)
    """The takers of progress of the queries that report it, by the same ids."""
    _num_queries: int = attrs.field(default=0, init=False)
    _asking: FairPlaces = attrs.field(
        factory=lambda: FairPlaces(QUESTIONS_AT_ONCE, share=QUESTIONS_OF_ONE_CLIENT), init=False
    )
    _is_closed: bool = attrs.field(default=False, init=False)

    def __repr__(self) -> str:
        return f"<AgentQuestions to {self.label}: {len(self._queries)} wait>"

    @property
    def are_open(self) -> bool:
        """Return whether something is asked, or a command under way."""
        return bool(self._queries)

    def close(self) -> None:
        """Every question ends with an error now: the connection is over."""
        self._is_closed = True
        for future in self._queries.values():
            future.set(AgentDisconnectedError(f"agent {self.label} disconnected"))

    async def ask(self, query: str) -> object:
        """Ask ``GetModelMetadata`` or ``GetChatTemplateOverride``; LinkError if it leaves.

        Returns:
          The raw response, e.g. ``{"ModelMetadata": null}``.
        """
        wire_id = self._next_id()
        return await self._asked(wire_id, dumps({"Request": {"id": wire_id, "request": query}}))

    async def ask_tree(self) -> object:
        """Return the agent's nursery tree as plain JSON."""
        wire_id = self._next_id()
        return await self._asked(wire_id, render_extension(GetTree(wire_id)))

    async def ask_model(self, question: bytes, *, client: str = "") -> object:
        """Return the answer of its model, as plain JSON.

        Args:
          question: the JSON of a ``Question``.

        Errors:
          QuestionRefusedError: there is no answer, and why.
          LinkError: it left before it answered.
        """
        wire_id = self._next_id()
        frame = b'{"Trio":{"Ask":{"id":%b,"client":%b,"question":%b}}}' % (
            dumps(wire_id),
            dumps(client),
            question,
        )
        if len(frame) > MAX_FRAME_BYTES:
            raise QuestionRefusedError(
                413, f"the question has {len(frame)} bytes, at most {MAX_FRAME_BYTES} are taken"
            )
        async with self._asking.held_by(client):
            return self._answer_in(await self._asked(wire_id, frame))

    async def ask_fit(self, question: FitQuestion) -> object:
        """Return whether a model would fit, a ``FitReport`` as plain JSON.

        Errors:
          QuestionRefusedError: there is no answer, and why.
          LinkError: it left before it answered.
        """
        state, extras, slots = applicable_state(question.state), question.extras, question.slots
        with self._asking_about(*question.sources):
            return await self._ask(
                lambda wire_id: AskFit(wire_id, state, extras, slots, beside=self.judges_beside)
            )

    async def order(self, order: Order) -> object:
        """Return the answer to an order, as plain JSON; errors are those of :meth:`ask_fit`."""
        return await self._ask(lambda wire_id: Operate(wire_id, order))

    async def _ask(self, message: Callable[[str], AskFit | Operate]) -> object:
        wire_id = self._next_id()
        return self._answer_in(await self._asked(wire_id, render_extension(message(wire_id))))

    @contextmanager
    def _asking_about(self, *models: DesiredModel) -> Iterator[None]:
        self.asked_models.update(models)
        try:
            yield
        finally:
            self.asked_models -= Counter(models)

    async def command_cache(
        self, request: CacheRequest, on_progress: Callable[[CacheProgress], None]
    ) -> object:
        """Return the answer to a command about its cache, as plain JSON.

        Args:
          on_progress: called at once when it begins, and then as it goes on.

        Errors:
          QuestionRefusedError: it failed, and why.
          LinkError: it left before it answered, or was silent for too long.
        """
        wire_id = self._next_id()
        patience_s = COMMAND_BEGINS_S
        with trio.CancelScope(deadline=trio.current_time() + patience_s) as waiting:

            def progressed(progress: CacheProgress) -> None:
                nonlocal patience_s
                patience_s = COMMAND_SILENCE_S
                waiting.deadline = trio.current_time() + patience_s
                on_progress(progress)

            self._progress[wire_id] = progressed
            models = request.models if isinstance(request, Pull) else ()
            try:
                with self._asking_about(*models):
                    answer = await self._asked(wire_id, render_extension(Cache(wire_id, request)))
            finally:
                del self._progress[wire_id]
            return self._answer_in(answer)
        why = "" if patience_s > COMMAND_BEGINS_S else ": it may be of an older version"
        raise LinkError(f"agent {self.label} reported nothing for {patience_s:g} s{why}")

    def _answer_in(self, answer: object) -> object:
        """Return what an ``Answer`` holds; QuestionRefusedError, LinkError."""
        if not isinstance(answer, Answer):
            raise LinkError(f"agent {self.label} answers a question with something else")
        if answer.problem is not None:
            raise QuestionRefusedError(answer.code, answer.problem)
        return answer.answer

    async def _asked(self, wire_id: str, frame: bytes) -> object:
        if self._is_closed:
            raise AgentDisconnectedError(f"agent {self.label} has disconnected")
        future: Future[object] = Future()
        self._queries[wire_id] = future
        try:
            self.send(frame)
            answer = await future.wait()
        except trio.Cancelled:
            if self.is_extended:  # the client is gone: its answer need not be computed
                self.send(render(StopRespondingTo(wire_id)))
            raise
        finally:
            del self._queries[wire_id]
        if isinstance(answer, LinkError):
            raise answer
        return answer

    def answer(self, wire_id: str, response: object) -> bool:
        """Take an answer; False if ``wire_id`` is no question that is being asked."""
        future = self._queries.get(wire_id)
        return future is not None and future.set(response)

    def progressed(self, progress: CacheProgress) -> None:
        """Note how far a command is; one that is over is ignored."""
        on_progress = self._progress.get(progress.id)
        if on_progress is not None:
            on_progress(progress)

    def _next_id(self) -> str:
        self._num_queries += 1
        return f"query.{self._num_queries}"
