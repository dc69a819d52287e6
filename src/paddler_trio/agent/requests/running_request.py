"""One request while an agent works on it."""

from __future__ import annotations

import attrs
import trio

from paddler_trio.agent.children.engine_process import EngineProcess
from paddler_trio.agent.link.link_reply import LinkReply
from paddler_trio.agent.requests.request_spans import RequestTimes
from paddler_trio.language.answers.output_processor import (
    OutputProcessor,
    RawResult,
)
from paddler_trio.system.synchronization import Future
from paddler_trio.wire.engine.engine_pipe import (
    Progress,
)
from paddler_trio.wire.trio.prompt_stages import PromptStages


@attrs.define(eq=False)
class RunningRequest:
    """One request. ``over`` is set once nothing more is sent for it."""

    wire_id: str
    reply: LinkReply
    times: RequestTimes
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    is_stopped: bool = False
    is_over: bool = False
    waits_for_model: bool = False
    key: int | None = None
    engine: EngineProcess | None = None
    """The engine that computes it; None before it started and after it ended there."""
    output: OutputProcessor | None = None
    prompt: Progress | None = None
    """The progress of its prompt, at the last report; None once the balancer was informed."""
    over: Future[None] = attrs.field(factory=Future)
    preemptions: int = 0
    """The number of times that the engine preempted it so far."""

    def __repr__(self) -> str:
        if self.is_over:
            state = "over"
        elif self.engine is None:
            state = "waits for a model" if self.waits_for_model else "in preparation"
        else:
            state = f"sequence {self.key} on the engine"
        return f"<RunningRequest {self.wire_id}: {state}{', stopped' if self.is_stopped else ''}>"

    def prompt_stages(self) -> PromptStages | None:
        """Return how the prompt was computed, with the first results; None later, or without a
        report."""
        if self.prompt is None and self.times.first_s is not None:
            return None  # as with nearly every token
        report, self.prompt = self.prompt, None
        return self.times.computed(report)

    def finish(self, tokens: list[int], results: list[RawResult], *, preemptions: int = 0) -> None:
        """Queue the last results; the caller flushes."""
        if not self.is_over:
            self.is_over = True
            self.times.preemptions = preemptions
            stages = self.prompt_stages()
            self.reply.results(self.wire_id, tokens, results, stages, preemptions)
            self.over.set(None)

    def return_unfinished(self, reason: str, *, suspects: int | None = None) -> None:
        """Hand it back for another agent to take; to a Paddler balancer, fail it."""
        if self.is_over:
            return
        self.is_over = True
        self.times.ending = "handed back"
        if self.reply.speaks_trio:
            self.reply.hand_back(self.wire_id, reason, suspects=suspects)
        else:
            self.reply.results(self.wire_id, [], [{"SamplerError": reason}])
            self.reply.flush()
        self.over.set(None)
