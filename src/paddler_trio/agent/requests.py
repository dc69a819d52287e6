"""The requests an agent works on: one task each, from its frame to its ending.

prompt (worker thread) -> engine -> results, step by step, straight from the engine's reader to
the link -> one ending. However a request ends it says so exactly once (W17): with an ending
result, or, to a balancer of ours, by handing it back so that another agent takes it.
"""

from __future__ import annotations

import itertools
import secrets
from functools import partial
from typing import Protocol

import attrs
import structlog
import trio

from paddler_trio.agent.embedding_requests import EmbeddingRequests
from paddler_trio.agent.engine_process import EngineProcess
from paddler_trio.agent.model_server import ModelServer
from paddler_trio.agent.questions import ModelQuestions
from paddler_trio.agent.status import AgentStatus
from paddler_trio.errors import EngineError, ModelFileError
from paddler_trio.language.answers.output_processor import (
    Generation,
    RawResult,
    done,
    extended_done,
)
from paddler_trio.language.giving_way import GivingWay
from paddler_trio.language.prompting import GenerationWork, prompt_of
from paddler_trio.language.refusal import Refusal
from paddler_trio.nursery_tree.synchronization import Verdict
from paddler_trio.wire.engine.engine_pipe import (
    Drawn,
    EmbeddingStep,
    Ending,
    StartSequence,
    Step,
    StopSequence,
)
from paddler_trio.wire.trio.generate import Generate

log = structlog.get_logger("requests")

PREPARING_THREADS = 4
"""How many prompts may be rendered and tokenised at once; more only take the decode's cores."""


@attrs.frozen
class Work:
    """What a balancer asks for; see :class:`paddler_trio.wire.trio.trio_link.Start`."""

    request: GenerationWork
    seed: int = attrs.field(factory=lambda: secrets.randbits(32))
    drawn: list[int] = attrs.field(factory=list)


class Reply(Protocol):
    """Where a request's results go: the link it came in on."""

    @property
    def hands_back(self) -> bool:
        """The balancer is ours: a request may be handed back instead of failed."""
        ...

    def results(self, wire_id: str, tokens: list[int], results: list[RawResult]) -> None: ...

    def hand_back(self, wire_id: str, reason: str, *, engine_died: bool) -> None: ...

    def flush(self) -> None:
        """Everything of one engine pass has been given: it may go out as one frame."""
        ...


@attrs.define(eq=False)
class _Running:
    """One request. ``ended`` once nothing more will be said of it."""

    wire_id: str
    reply: Reply
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    is_stopped: bool = False
    is_over: bool = False
    waits_for_model: bool = False
    key: int | None = None
    engine: EngineProcess | None = None
    """The engine that works on it; None before it started and after it ended there."""
    generation: Generation | None = None
    over: Verdict[None] = attrs.field(factory=Verdict)

    def finish(self, tokens: list[int], results: list[RawResult]) -> None:
        """Say the last results; the caller flushes."""
        if not self.is_over:
            self.is_over = True
            self.reply.results(self.wire_id, tokens, results)
            self.over.give(None)

    def return_unfinished(self, reason: str, *, engine_died: bool = False) -> None:
        """Another agent should take it; a Paddler balancer can only be told that it failed."""
        if self.is_over:
            return
        self.is_over = True
        if self.reply.hands_back:
            self.reply.hand_back(self.wire_id, reason, engine_died=engine_died)
        else:
            self.reply.results(self.wire_id, [], [{"SamplerError": reason}])
            self.reply.flush()
        self.over.give(None)


@attrs.define(eq=False)
class AgentRequests:
    """All requests of this agent, whatever link they came in on.

    ``open`` must be given the nursery that owns them before the first one. Those that embed are
    ``embeddings``; they are stopped and lost together with the others.
    """

    status: AgentStatus
    embeddings: EmbeddingRequests = attrs.field(init=False)
    questions: ModelQuestions = attrs.field(init=False)
    _models: ModelServer | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _running: dict[tuple[int, str], _Running] = attrs.field(factory=dict, init=False)
    _by_key: dict[int, _Running] = attrs.field(factory=dict, init=False)
    _keys: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1), init=False)
    _threads: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(PREPARING_THREADS), init=False
    )
    _giving_way: GivingWay = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._giving_way = GivingWay(to_others=lambda: bool(self._by_key))
        self.embeddings = EmbeddingRequests(self.status, self._giving_way)
        self.questions = ModelQuestions(self._giving_way)

    def open(self, requests: trio.Nursery, models: ModelServer) -> None:
        self._nursery = requests
        self._models = models
        self.embeddings.open(requests, models)
        self.questions.open(requests, models)

    # ------------------------------------------------------- from the link

    def start(
        self,
        wire_id: str,
        work: Work,
        reply: Reply,
    ) -> None:
        """Work on a request; every way it can go wrong is answered on ``reply``."""
        running = _Running(wire_id, reply)
        if (id(reply), wire_id) in self._running:
            running.finish([], [{"SamplerError": f"request id {wire_id!r} is in use already"}])
            reply.flush()
            return
        if self._nursery is None or self.status.is_leaving:
            running.return_unfinished("this agent is leaving")
            return
        self._running[id(reply), wire_id] = running
        self._count()
        self._nursery.start_soon(self._serve, running, work, name=f"request {wire_id}")

    def stop(self, wire_id: str, reply: Reply) -> None:
        """End a request early; it still ends with its results so far and a Done."""
        self.embeddings.stop(wire_id, reply)
        running = self._running.get((id(reply), wire_id))
        if running is not None and not running.is_stopped:
            running.is_stopped = True
            if running.engine is not None and running.key is not None:
                _tell(running.engine, StopSequence(running.key))
            else:
                running.scope.cancel(reason="the balancer asked to stop")

    def stop_all_of(self, reply: Reply) -> None:
        """The link is gone: nobody hears the results any more."""
        self.embeddings.stop_all_of(reply)
        self.questions.stop_all_of(reply)
        for running in list(self._running.values()):
            if running.reply is reply:
                running.is_over = True
                self.stop(running.wire_id, reply)
                running.over.give(None)

    # ----------------------------------------------------- from the engine

    def on_step(self, step: Step | EmbeddingStep) -> None:
        """One pass of the engine: results go straight to the links, one frame for each."""
        if isinstance(step, EmbeddingStep):
            self.embeddings.on_step(step)
            return
        replies: dict[int, Reply] = {}
        drawn: dict[int, list[Drawn]] = {}
        for token in step.drawn:
            drawn.setdefault(token.key, []).append(token)
        endings = {ending.key: ending for ending in step.endings}
        for progress in step.progress:
            running = self._by_key.get(progress.key)
            if running is None or running.generation is None or running.is_over:
                continue
            replies[id(running.reply)] = running.reply
            told = running.generation.progress(progress)
            running.reply.results(running.wire_id, [], told)
        for key in drawn.keys() | endings.keys():
            running = self._by_key.get(key)
            if running is None or running.generation is None or running.is_over:
                continue
            replies[id(running.reply)] = running.reply
            self._pass_on(running, running.generation, drawn.get(key, []), endings.get(key))
        for reply in replies.values():
            reply.flush()

    def _pass_on(
        self, running: _Running, generation: Generation, drawn: list[Drawn], ending: Ending | None
    ) -> None:
        tokens: list[int] = []
        results: list[RawResult] = []
        for token in drawn:
            if generation.is_complete:  # drawn before the engine heard of it
                break
            is_last = ending is not None and ending.reason == "stop" and token is drawn[-1]
            results += generation.take(token.text, ends_turn=is_last, logprobs=token.logprobs)
            tokens.append(token.token)
        if ending is not None:
            running.engine = None
            running.finish(tokens, results + generation.end(ending))
            return
        if results or tokens:
            running.reply.results(running.wire_id, tokens, results)
        if tokens and generation.is_complete and running.engine is not None:
            # its ending comes at the next pass, and says what was cached and how long it took
            assert running.key is not None
            _tell(running.engine, StopSequence(running.key))

    def on_engine_gone(self, reason: str, *, crashed: bool) -> None:
        """Everything that ran on it is lost; other agents may still answer."""
        self.embeddings.on_engine_gone(reason, crashed=crashed)
        for running in list(self._by_key.values()):
            running.engine = None
            running.return_unfinished(reason, engine_died=crashed)

    # -------------------------------------------------- the life of a request

    async def _serve(
        self,
        running: _Running,
        work: Work,
    ) -> None:
        """One request; leaves nothing of it behind, in the engine or on the link."""
        try:
            with running.scope:
                await self._generate(running, work)
            if running.is_stopped and not running.is_over:  # before the engine knew of it
                running.finish([], [_nothing_done(work)])
                running.reply.flush()
        except Refusal as refusal:
            running.finish([], [refusal.result])
            running.reply.flush()
        except (EngineError, ModelFileError) as error:
            running.return_unfinished(str(error))
        finally:
            self._forget(running)

    async def _generate(
        self,
        running: _Running,
        work: Work,
    ) -> None:
        assert self._models is not None
        serving = self._models.serving
        if serving is None and not running.reply.hands_back:
            running.waits_for_model = True
            self._count()
            serving = await self._models.wait_serving()
            running.waits_for_model = False
            self._count()
        if serving is None:
            running.return_unfinished("this agent serves no model now")
            return
        is_paddlers = not isinstance(work.request, Generate)
        if is_paddlers and serving.language.parameters.enable_embeddings:
            raise Refusal(
                "TokenGenerationDisabled",
                "Token generation is disabled while the cluster is configured for embeddings",
            )
        prompt = await trio.to_thread.run_sync(
            self._giving_way.run,
            partial(prompt_of, work.request, serving.language, seed=work.seed, drawn=work.drawn),
            limiter=self._threads,
            abandon_on_cancel=True,
        )
        if prompt.generation.is_complete:  # the agent before us drew all of it
            ending = Ending(0, "stopped", len(prompt.tokens), 0)
            running.finish([], prompt.generation.end(ending))
            running.reply.flush()
            return
        running.key = next(self._keys)
        running.generation = prompt.generation
        running.engine = serving.engine
        self._by_key[running.key] = running
        serving.engine.send(
            StartSequence(
                key=running.key,
                tokens=prompt.tokens,
                images=prompt.images,
                drawn=work.drawn,
                max_tokens=prompt.max_tokens,
                sampling=prompt.sampling,
                grammar=prompt.grammar,
                reasoning=prompt.reasoning,
                logprobs=prompt.logprobs,
                reuse_prefix=prompt.reuse_prefix,
                salt=prompt.salt,
            )
        )
        await running.over.wait()

    def _forget(self, running: _Running) -> None:
        """Sync, so it cannot be torn; a sequence still running is ended."""
        if running.key is not None:
            del self._by_key[running.key]
            if running.engine is not None and not running.is_stopped:
                _tell(running.engine, StopSequence(running.key))
        running.return_unfinished("this agent is stopping")
        self._running.pop((id(running.reply), running.wire_id), None)
        self._count()

    def _count(self) -> None:
        """Who waits for a model does not run: the swap it waits for must not wait for it (W16)."""
        running = sum(not request.waits_for_model for request in self._running.values())
        self.status.set_running(generations=running)


def _nothing_done(work: Work) -> RawResult:
    """The ending of what was stopped before the engine knew of it."""
    ending = Ending(0, "stopped", 0, 0)
    return extended_done(ending, {}) if isinstance(work.request, Generate) else done(ending, {})


def _tell(engine: EngineProcess, frame: StopSequence) -> None:
    """Ask a sequence to end; an engine that is gone has ended it already."""
    try:
        engine.send(frame)
    except EngineError as error:
        log.debug("nothing to stop", reason=str(error))
