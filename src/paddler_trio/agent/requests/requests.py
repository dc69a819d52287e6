"""The requests an agent works on: one task each, from its frame to its ending.

prompt (preparation process) -> engine -> results, step by step, straight from the engine's reader
to the link -> one ending. A request ends with exactly one frame: an ending result, or, to a
balancer of ours, a ``HandBack``, so that another agent takes it.
"""

from __future__ import annotations

import itertools

import attrs
import structlog
import trio

from paddler_trio.agent.children.engine_crash import Suspects
from paddler_trio.agent.children.engine_process import EngineProcess
from paddler_trio.agent.children.preparation import PreparationTurns
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.link.link_reply import LinkReply
from paddler_trio.agent.link.link_tasks import OrderTasks
from paddler_trio.agent.model.cache_tasks import CacheTasks
from paddler_trio.agent.model.fit_tasks import FitTasks
from paddler_trio.agent.model.model_server import ModelServer
from paddler_trio.agent.model.serving import OTHER_MODEL, Serving
from paddler_trio.agent.requests.embedding_requests import EmbeddingRequests
from paddler_trio.agent.requests.question_tasks import QuestionTasks
from paddler_trio.agent.requests.request_spans import RequestTimes
from paddler_trio.agent.requests.running_request import RunningRequest
from paddler_trio.errors import EngineError, PreparationError
from paddler_trio.language.answers.output_processor import (
    OutputProcessor,
    RawResult,
    done,
    extended_done,
)
from paddler_trio.processes.preparation.preparation_messages import Job, PreparedGeneration, Refused
from paddler_trio.telemetry.span_export import SpanExport
from paddler_trio.wire.engine.engine_pipe import (
    EmbeddingStep,
    Ending,
    SampledToken,
    Step,
    StopSequence,
)
from paddler_trio.wire.trio.fit_messages import AskFit
from paddler_trio.wire.trio.operations.operator_orders import Operate
from paddler_trio.wire.trio.request_frame import RequestFrame
from paddler_trio.wire.trio.trio_link import Cache

log = structlog.get_logger("requests")


@attrs.define(eq=False)
class AgentRequests:
    """All requests of this agent, of every connection.

    Call ``open`` with the nursery that owns them before the first one. Those that embed are in
    ``embeddings``; they are stopped and lost together with the others.

    Args:
      name: of this instance, in traces.
      spans: takes the spans of requests that have ended; None for no traces.
    """

    status: AgentStatus
    name: str = ""
    spans: SpanExport | None = None
    embeddings: EmbeddingRequests = attrs.field(init=False)
    questions: QuestionTasks = attrs.field(init=False)
    fits: FitTasks = attrs.field(factory=FitTasks, init=False)
    orders: OrderTasks = attrs.field(factory=OrderTasks, init=False)
    cache: CacheTasks = attrs.field(factory=CacheTasks, init=False)
    """The commands about the cache. It is not opened with the others: what it does is not waited
    for when the agent stops."""
    _models: ModelServer | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _running: dict[tuple[int, str], RunningRequest] = attrs.field(factory=dict, init=False)
    _by_key: dict[int, RunningRequest] = attrs.field(factory=dict, init=False)
    _keys: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1), init=False)
    _turns: PreparationTurns = attrs.field(factory=PreparationTurns, init=False)

    def __attrs_post_init__(self) -> None:
        self.embeddings = EmbeddingRequests(self.status, self._turns, self.name, self.spans)
        self.questions = QuestionTasks()

    def __repr__(self) -> str:
        return f"<AgentRequests: {len(self._running)} generations, {self.embeddings}>"

    def open(self, requests: trio.Nursery, models: ModelServer) -> None:
        self._nursery = requests
        self._models = models
        self.embeddings.open(requests, models)
        self.questions.open(requests, models)
        self.fits.open(requests, models)
        self.orders.open(requests, models)

    # ------------------------------------------------------- from the link

    def work(self, frame: RequestFrame, reply: LinkReply) -> None:
        """Work on what has come; every failure is answered on ``reply``."""
        match frame.kind:
            case "generation":
                self.start(frame, reply)
            case "embedding":
                self.embeddings.start(frame, reply)
            case "question":
                self.questions.ask(frame, reply)

    def ask_fit(self, question: AskFit, reply: LinkReply) -> None:
        self.fits.ask(question, reply)

    def operate(self, operate: Operate, reply: LinkReply) -> None:
        self.orders.take(operate, reply)

    def command_cache(self, command: Cache, reply: LinkReply) -> None:
        self.cache.start(command, reply)

    def open_tunnel(self, secret: str, reply: LinkReply) -> None:
        """Refuse: only agents in front of a server have tunnels."""
        log.warning("a tunnel is asked for, and there is no server to lead to")

    def start(
        self,
        frame: RequestFrame,
        reply: LinkReply,
    ) -> None:
        """Work on a request; every failure is answered on ``reply``."""
        wire_id = frame.id
        running = RunningRequest(wire_id, reply, RequestTimes.of(frame, self.name))
        if (id(reply), wire_id) in self._running:
            running.finish([], [{"SamplerError": f"request id {wire_id!r} is in use already"}])
            reply.flush()
            return
        if self._nursery is None or self.status.is_leaving:
            running.return_unfinished("this agent is leaving")
            return
        self._running[id(reply), wire_id] = running
        self._count()
        self._nursery.start_soon(self._serve, running, frame, name=f"request {wire_id}")

    def stop(self, wire_id: str, reply: LinkReply) -> None:
        """End a request early, with its results so far and a ``Done``."""
        self.embeddings.stop(wire_id, reply)
        self.questions.stop(wire_id, reply)
        self.fits.stop(wire_id, reply)
        self.orders.stop(wire_id, reply)
        self.cache.stop(wire_id, reply)
        running = self._running.get((id(reply), wire_id))
        if running is not None and not running.is_stopped:
            running.is_stopped = True
            if running.engine is not None and running.key is not None:
                _send(running.engine, StopSequence(running.key))
            else:
                running.scope.cancel(reason="the balancer asked to stop")

    def stop_all_of(self, reply: LinkReply) -> None:
        """Stop the requests of a connection that has ended and send nothing more."""
        self.embeddings.stop_all_of(reply)
        self.questions.stop_all_of(reply)
        self.fits.stop_all_of(reply)
        self.orders.stop_all_of(reply)
        self.cache.stop_all_of(reply)
        for running in list(self._running.values()):
            if running.reply is reply:
                if not running.is_over:
                    running.times.ending = "disconnected"
                running.is_over = True
                self.stop(running.wire_id, reply)
                running.over.set(None)

    # ----------------------------------------------------- from the engine

    def on_step(self, step: Step | EmbeddingStep) -> None:
        """Pass on one pass of the engine: results go straight to the links, one frame for each."""
        if isinstance(step, EmbeddingStep):
            self.embeddings.on_step(step)
            return
        replies: dict[int, LinkReply] = {}
        sampled: dict[int, list[SampledToken]] = {}
        for token in step.sampled:
            sampled.setdefault(token.key, []).append(token)
        endings = {ending.key: ending for ending in step.endings} if step.endings else {}
        for progress in step.progress:
            running = self._by_key.get(progress.key)
            if running is None or running.output is None or running.is_over:
                continue
            replies[id(running.reply)] = running.reply
            running.prompt = progress
            running.reply.results(running.wire_id, [], running.output.progress(progress))
        for key in step.preempted:
            running = self._by_key.get(key)
            if running is None or running.is_over:
                continue
            replies[id(running.reply)] = running.reply
            running.preemptions += 1
            running.reply.results(running.wire_id, [], [], preemptions=running.preemptions)
        for key in sampled.keys() | endings.keys() if endings else sampled:
            running = self._by_key.get(key)
            if running is None or running.output is None or running.is_over:
                continue
            replies[id(running.reply)] = running.reply
            try:
                self._pass_on(running, running.output, sampled.get(key, []), endings.get(key))
            except Exception:  # what one model writes for one request must not end all the others
                log.exception("an answer cannot be read", request=running.wire_id)
                _give_up(running)
        for reply in replies.values():
            reply.flush()

    def _pass_on(
        self,
        running: RunningRequest,
        output: OutputProcessor,
        sampled: list[SampledToken],
        ending: Ending | None,
    ) -> None:
        tokens: list[int] = []
        results: list[RawResult] = []
        for token in sampled:
            if output.is_complete:  # sampled before the engine read the stop
                break
            is_last = ending is not None and ending.reason == "stop" and token is sampled[-1]
            results += output.take(token.text, ends_turn=is_last, logprobs=token.logprobs)
            tokens.append(token.token)
        if ending is not None:
            running.engine = None
            results += output.end(ending)
            running.finish(tokens, results, preemptions=ending.num_preemptions)
            return
        if results or tokens:
            running.reply.results(running.wire_id, tokens, results, running.prompt_stages())
        if tokens and output.is_complete and running.engine is not None:
            # its ending comes with the next pass, with the counts and times
            assert running.key is not None
            _send(running.engine, StopSequence(running.key))

    def on_engine_gone(self, engine: EngineProcess, reason: str, suspects: Suspects | None) -> None:
        """Note that everything that ran on an engine is lost; other agents may still answer.
        ``suspects``: the requests that may have caused a crash; None if the engine was stopped."""
        self.embeddings.on_engine_gone(engine, reason, suspects)
        for key, running in list(self._by_key.items()):
            if running.engine is not engine:
                continue
            running.engine = None
            blamed = None if suspects is None else suspects.of_sequence(key)
            running.return_unfinished(reason, suspects=blamed)

    # -------------------------------------------------- the life of a request

    async def _serve(
        self,
        running: RunningRequest,
        frame: RequestFrame,
    ) -> None:
        """Serve one request, until nothing of it is left in the engine or on the connection."""
        running.times.log_begin(frame)
        try:
            with running.scope:
                await self._generate(running, frame)
            if running.is_stopped and running.times.ending == "done":
                running.times.ending = "stopped"
            if running.is_stopped and not running.is_over:  # before the engine started it
                running.finish([], [_nothing_done(frame)])
                running.reply.flush()
        except (EngineError, PreparationError) as error:
            running.return_unfinished(str(error))
        finally:
            self._forget(running)

    async def _generate(self, running: RunningRequest, frame: RequestFrame) -> None:
        serving = await self._serving(running)
        if serving is None:
            running.return_unfinished("this agent serves no model now")
            return
        if not serving.may_answer(frame):
            running.return_unfinished(OTHER_MODEL)
            return
        with serving.uses.one():
            await self._generate_on(serving, running, frame)

    async def _generate_on(
        self, serving: Serving, running: RunningRequest, frame: RequestFrame
    ) -> None:
        """Generate all of it on this model, also when another one is put in force meanwhile."""
        if not frame.is_extended and serving.preparation.parameters.enable_embeddings:
            reason = "Token generation is disabled while the cluster is configured for embeddings"
            running.finish([], [{"TokenGenerationDisabled": reason}])
            running.reply.flush()
            return
        ready = serving.engine.ready
        assert ready is not None, "an engine that serves was ready once"
        key = next(self._keys)
        async with self._turns.turn(frame, running.reply):
            job = Job(frame, key, ready)
            prepared = await serving.preparation.prepare(job, client=frame.client)
        if running.is_stopped:
            return  # after the last read of the result, which no cancellation ends any more
        running.times.prepared_s = trio.current_time()
        running.reply.acknowledge(running.wire_id, serving.in_force.fingerprint)
        if not isinstance(prepared, PreparedGeneration):
            assert isinstance(prepared, Refused), "a generation is prepared or refused"
            if prepared.is_elsewhere:
                running.return_unfinished(OTHER_MODEL)
                return
            running.finish([], [prepared.result])
            running.reply.flush()
            return
        if prepared.output.is_complete:  # the agent before sampled all of it
            ending = Ending(0, "stopped", prepared.num_prompt_tokens, 0)
            running.finish([], prepared.output.end(ending))
            running.reply.flush()
            return
        running.key, running.output, running.engine = key, prepared.output, serving.engine
        self._by_key[key] = running
        serving.engine.send_encoded(prepared.start)
        await running.over.wait()

    async def _serving(self, running: RunningRequest) -> Serving | None:
        """Return the model in force, or None; for a Paddler balancer it is waited for."""
        assert self._models is not None
        serving = self._models.serving
        if serving is None and not running.reply.speaks_trio:
            running.waits_for_model = True
            self._count()
            serving = await self._models.wait_serving()
            running.waits_for_model = False
            self._count()
        return serving

    def _forget(self, running: RunningRequest) -> None:
        """Forget a request; synchronous, so cancellation cannot interrupt it; a sequence still
        running is ended."""
        if running.key is not None:
            del self._by_key[running.key]
            if running.engine is not None and not running.is_stopped:
                _send(running.engine, StopSequence(running.key))
        running.return_unfinished("this agent is stopping")
        self._running.pop((id(running.reply), running.wire_id), None)
        self._count()
        times = running.times
        times.ended_s = trio.current_time()
        times.num_tokens = 0 if running.output is None else running.output.num_sampled
        times.log_end()
        times.export(self.spans)

    def _count(self) -> None:
        """Count running requests. One that waits for a model does not count: the swap must not wait
        for it."""
        running = sum(not request.waits_for_model for request in self._running.values())
        self.status.set_running(generations=running)


def _give_up(running: RunningRequest) -> None:
    """End a request whose answer cannot be read: another agent could not read it either."""
    if running.engine is not None and not running.is_stopped:
        assert running.key is not None
        _send(running.engine, StopSequence(running.key))
        running.engine = None
    running.times.ending = "failed"
    running.finish([], [{"SamplerError": "the answer cannot be read: see the agent's log"}])


def _nothing_done(frame: RequestFrame) -> RawResult:
    """Return the ending of a request that was stopped before the engine started it."""
    ending = Ending(0, "stopped", 0, 0)
    return extended_done(ending, {}) if frame.is_extended else done(ending, {})


def _send(engine: EngineProcess, frame: StopSequence) -> None:
    """Stop a sequence; an engine that is gone has ended it already."""
    try:
        engine.send(frame)
    except EngineError as error:
        log.debug("nothing to stop", reason=str(error))
