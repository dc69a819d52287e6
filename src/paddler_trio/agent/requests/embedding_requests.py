"""The embedding requests an agent works on: one task each, from its frame to its ending.

tokenise (preparation process) -> engine -> average, norm, JSON (worker thread) -> link. Documents
come back from the engine in any order and go out in the order of the request: first those that
are too long, then the vectors, then exactly one ending.

The engine is given a request a portion at a time, and the next one only after vectors of those
before were sent: behind a slow link the engine stays free for others, and few vectors wait.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs
import numpy as np
import structlog
import trio

from paddler_trio.agent.children.engine_crash import Suspects
from paddler_trio.agent.children.engine_process import EngineProcess
from paddler_trio.agent.children.preparation import PreparationTurns
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model.model_server import ModelServer
from paddler_trio.agent.model.serving import OTHER_MODEL, Serving
from paddler_trio.agent.requests.embedding_in_flight import (
    EmbeddingInFlight,
    EmbeddingReply,
    EngineLostError,
    Portion,
)
from paddler_trio.agent.requests.request_spans import RequestTimes
from paddler_trio.errors import EngineError, PreparationError
from paddler_trio.language.embedding_results import (
    EmbeddingRefusedError,
    Form,
    Gathered,
    Gathering,
    RawEmbeddingResult,
    oversize_result,
    refused_result,
    result_of,
)
from paddler_trio.processes.preparation.preparation_messages import Job, PreparedEmbedding, Refused
from paddler_trio.telemetry.span_export import SpanExport
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.engine.engine_pipe import (
    Embedded,
    EmbeddingStep,
    EmbedDocuments,
    StopEmbedding,
)
from paddler_trio.wire.trio.request_frame import RequestFrame

log = structlog.get_logger("embeddings")

RENDERING_THREADS = 2
PORTION_TOKENS = 4096
"""The tokens that the engine is given of a request at once: some passes, so that it need not wait
for more."""
RENDERED_AT_ONCE = 16
"""Documents that one visit to a worker thread turns into frames."""


@attrs.define(eq=False)
class EmbeddingRequests:
    """All embedding requests of this agent, of every connection.

    Call ``open`` with the nursery that owns them before the first one.
    """

    status: AgentStatus
    turns: PreparationTurns
    name: str = ""
    spans: SpanExport | None = None
    _models: ModelServer | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _running: dict[tuple[int, str], EmbeddingInFlight] = attrs.field(factory=dict, init=False)
    _by_key: dict[int, EmbeddingInFlight] = attrs.field(factory=dict, init=False)
    _keys: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1), init=False)
    _threads: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(RENDERING_THREADS), init=False
    )

    def __repr__(self) -> str:
        return f"<EmbeddingRequests: {len(self._running)} running, {len(self._by_key)} portions>"

    def open(self, requests: trio.Nursery, models: ModelServer) -> None:
        self._nursery = requests
        self._models = models

    # ------------------------------------------------------- from the link

    def start(self, frame: RequestFrame, reply: EmbeddingReply) -> None:
        """Work on a request; every failure is answered on ``reply``."""
        wire_id = frame.id
        running = EmbeddingInFlight(
            wire_id,
            reply,
            frame.is_extended,
            RequestTimes.of(frame, self.name),
            isolated=bool(frame.isolated),
        )
        if (id(reply), wire_id) in self._running:
            running.answer({"Error": f"request id {wire_id!r} is in use already"})
            return
        if self._nursery is None or self.status.is_leaving:
            running.return_unfinished("this agent is leaving")
            return
        self._running[id(reply), wire_id] = running
        self._count()
        self._nursery.start_soon(self._serve, running, frame, name=f"embeddings {wire_id}")

    def stop(self, wire_id: str, reply: object) -> None:
        """End a request early, with an ending. Unknown ids are ignored."""
        running = self._running.get((id(reply), wire_id))
        if running is not None:
            running.scope.cancel(reason="the balancer asked to stop")

    def stop_all_of(self, reply: object) -> None:
        """Stop the requests of a connection that has ended and send nothing more."""
        for running in self._running.values():
            if running.reply is reply:
                running.is_disconnected = True
                running.scope.cancel(reason="the link is gone")

    # ----------------------------------------------------- from the engine

    def on_step(self, step: EmbeddingStep) -> None:
        """Take in one embedding pass of the engine."""
        for embedded in step.embedded:
            running = self._by_key.get(embedded.key)
            if running is not None:  # else it was stopped meanwhile
                running.arrived.append(embedded)
                running.news.set()

    def on_engine_gone(self, engine: EngineProcess, reason: str, suspects: Suspects | None) -> None:
        """Note that everything that ran on an engine is lost."""
        for running in self._running.values():
            if running.engine is engine:
                running.engine = None
                blamed = None
                if suspects is not None:
                    blamed = max(map(suspects.of_embeddings, running.portions), default=0)
                running.lost = EngineLostError(reason, blamed)
                running.news.set()

    # -------------------------------------------------- the life of a request

    async def _serve(self, running: EmbeddingInFlight, frame: RequestFrame) -> None:
        """Serve one request, until nothing of it is left in the engine or on the connection."""
        running.times.log_begin(frame)
        try:
            ending: RawEmbeddingResult | None = None
            with running.scope:
                try:
                    ending = await self._embed(running, frame)
                except EmbeddingRefusedError as refusal:
                    ending = {"Error": str(refusal)}
            if not running.is_disconnected:
                await self._end(running, ending or running.ending())
        except (EngineError, PreparationError) as error:
            suspects = error.suspects if isinstance(error, EngineLostError) else None
            running.return_unfinished(str(error), suspects=suspects)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("the link ended under an embedding request", id=running.wire_id)
        finally:
            self._forget(running)

    async def _embed(self, running: EmbeddingInFlight, frame: RequestFrame) -> RawEmbeddingResult:
        """Send everything up to the ending, which is returned."""
        serving = await self._serving(running)
        if not serving.may_answer(frame):
            raise EngineError(OTHER_MODEL)
        with serving.uses.one():
            return await self._embed_on(serving, running, frame)

    async def _embed_on(
        self, serving: Serving, running: EmbeddingInFlight, frame: RequestFrame
    ) -> RawEmbeddingResult:
        """Embed all of it on this model, also when another one is put in force meanwhile."""
        if not serving.preparation.parameters.enable_embeddings:
            return "EmbeddingsDisabled"
        ready = serving.engine.ready
        assert ready is not None, "an engine that serves is ready"
        if ready.embedding is None:
            raise EmbeddingRefusedError(ready.embedding_problem)
        max_tokens = ready.embedding.max_tokens
        async with self.turns.turn(frame, running.reply):
            job = Job(frame, 0, ready)
            prepared = await serving.preparation.prepare(job, client=frame.client)
        running.times.prepared_s = trio.current_time()
        running.reply.acknowledge(running.wire_id)
        if not isinstance(prepared, PreparedEmbedding):
            assert isinstance(prepared, Refused), "an embedding is prepared or refused"
            return prepared.result
        documents, form = prepared.documents, prepared.form
        for document in documents:
            if document.oversize:
                result = oversize_result(document, max_tokens)
                await running.reply.send_large(_frame(running.wire_id, result))
            elif document.problem:
                running.problems.append(document.problem)
                if running.is_extended:
                    result = refused_result(document)
                    await running.reply.send_large(_frame(running.wire_id, result))
        gathering = Gathering([document for document in documents if document.chunks])
        running.engine = serving.engine
        while not gathering.is_complete:
            self._feed(running, gathering)
            for embedded in await running.next_embedded():
                index = self._chunk_of(running, embedded)
                gathering.take(index, embedded.values, embedded.problem)
            ready_ones = gathering.ready()
            for start in range(0, len(ready_ones), RENDERED_AT_ONCE):
                await self._deliver(running, ready_ones[start : start + RENDERED_AT_ONCE], form)
        running.engine = None
        return running.ending()

    async def _serving(self, running: EmbeddingInFlight) -> Serving:
        """Return the model in force; for a Paddler balancer it is waited for."""
        assert self._models is not None
        if self._models.serving is None:
            if running.reply.speaks_trio:
                raise EngineError("this agent serves no model now")
            running.waits_for_model = True
            self._count()
            await self._models.wait_serving()
            running.waits_for_model = False
            self._count()
        serving = self._models.serving
        if serving is None:
            raise EngineError("this agent serves no model any more")
        return serving

    def _feed(self, running: EmbeddingInFlight, gathering: Gathering) -> None:
        """Give the engine the next portions, so that it has one and less than two of them."""
        while running.engine is not None and gathering.tokens_away < PORTION_TOKENS:
            portion = gathering.next_portion(PORTION_TOKENS)
            if not portion:
                return
            documents = [np.array(gathering.chunks[i], "<i4").tobytes() for i in portion]
            key = next(self._keys)
            running.engine.send(EmbedDocuments(key, documents, running.isolated))
            running.portions[key] = Portion(portion.start, len(portion))
            self._by_key[key] = running

    def _chunk_of(self, running: EmbeddingInFlight, embedded: Embedded) -> int:
        """Return which chunk of the request this is; a portion that is back is forgotten."""
        portion = running.portions[embedded.key]
        portion.num_left -= 1
        if not portion.num_left:
            del running.portions[embedded.key], self._by_key[embedded.key]
        return portion.first + embedded.index

    async def _deliver(
        self, running: EmbeddingInFlight, gathered: Sequence[Gathered], form: Form
    ) -> None:
        """Turn vectors into frames in a worker thread, since they are long; and send them."""
        rendered = await trio.to_thread.run_sync(
            lambda: [_render(running.wire_id, each, form) for each in gathered],
            limiter=self._threads,
        )
        for each, frame in zip(gathered, rendered, strict=True):
            if isinstance(frame, EmbeddingRefusedError):
                running.problems.append(str(frame))
                continue
            await running.reply.send_large(frame)
            running.num_results += 1
            running.num_tokens += sum(map(len, each.document.chunks))

    async def _end(self, running: EmbeddingInFlight, ending: RawEmbeddingResult) -> None:
        if running.is_extended:
            usage: RawEmbeddingResult = {"Usage": {"prompt_tokens": running.num_tokens}}
            await running.reply.send_large(_frame(running.wire_id, usage))
        await running.reply.send_large(_frame(running.wire_id, ending))
        running.is_over = True

    def _forget(self, running: EmbeddingInFlight) -> None:
        """Forget a request; synchronous, so cancellation cannot interrupt it; the engine drops the
        rest."""
        running.return_unfinished("this agent is stopping")
        for key in running.portions:
            del self._by_key[key]
            if running.engine is not None:
                try:
                    running.engine.send(StopEmbedding(key))
                except EngineError as error:
                    log.debug("nothing to stop", reason=str(error))
        del self._running[id(running.reply), running.wire_id]
        self._count()
        times = running.times
        if running.is_disconnected:
            times.ending = "disconnected"
        elif running.scope.cancel_called and times.ending == "done":
            times.ending = "stopped"
        times.ended_s, times.num_tokens = trio.current_time(), running.num_results
        times.log_end()
        times.export(self.spans)

    def _count(self) -> None:
        """Count running requests. One that waits for a model does not count: the swap must not wait
        for it."""
        running = sum(not request.waits_for_model for request in self._running.values())
        self.status.set_running(embeddings=running)


def _frame(wire_id: str, result: RawEmbeddingResult) -> bytes:
    return dumps(
        {
            "Response": {
                "generated_by": None,
                "request_id": wire_id,
                "response": {"Embedding": result},
            }
        }
    )


def _render(wire_id: str, gathered: Gathered, form: Form) -> bytes | EmbeddingRefusedError:
    """Return the frame of a document's result, or why there is none."""
    if gathered.problem:
        return EmbeddingRefusedError(f"document {gathered.document.id!r}: {gathered.problem}")
    try:
        return _frame(wire_id, result_of(gathered.document, gathered.values, form))
    except EmbeddingRefusedError as error:
        return error
