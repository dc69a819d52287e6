"""The spans of one request as its agent saw it; the balancer's span of the placement is above them.

generation, embedding            SERVER: from the frame to the ending
├─ prepare                       template, tokens, images: until the engine was given the prompt
├─ engine queue                  until the engine began with it
├─ prefill                       until the first token was sampled
└─ decode                        until the end
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import attrs
import structlog
import trio

from paddler_trio.telemetry.span_data import SpanData, filled
from paddler_trio.telemetry.span_export import SpanExport
from paddler_trio.wire.engine.engine_pipe import Progress
from paddler_trio.wire.trace_parent import TraceContext
from paddler_trio.wire.trio.prompt_stages import PromptStages, RequestTrace
from paddler_trio.wire.trio.request_frame import Kind, RequestFrame

log = structlog.get_logger("requests")


@attrs.define(eq=False)
class RequestTimes:
    """The times that are noted of one request, never its text; seconds of Trio's clock.

    Args:
      id: on its link.
      tag: what kind of work it is, such as ``Generate``.
      trace: what names it; None from a balancer that sends no names.
      agent: the name of this instance.
      stages: how the prompt was computed, once the engine reported it.
      ending: ``done``, ``stopped``, ``handed back``, or ``disconnected`` with its link.
    """

    id: str
    kind: Kind
    tag: str
    trace: RequestTrace | None
    agent: str
    began_s: float = attrs.field(factory=trio.current_time)
    prepared_s: float | None = None
    first_s: float | None = None
    stages: PromptStages | None = None
    ended_s: float | None = None
    num_tokens: int = 0
    preemptions: int = 0
    ending: str = "done"

    @classmethod
    def of(cls, frame: RequestFrame, agent: str) -> RequestTimes:
        """Return the times of a request that has just come in."""
        return cls(frame.id, frame.kind, frame.tag, frame.trace, agent)

    def computed(self, report: Progress | None) -> PromptStages | None:
        """Note that there are results; return how the prompt was computed, once, if the engine has
        reported it: after a preemption it is computed again."""
        now_s = trio.current_time()
        if self.first_s is None:
            self.first_s = now_s
        if report is None or self.prepared_s is None or self.stages is not None:
            return None
        since_sent_ms = round(1000 * (now_s - self.prepared_s))
        self.stages = PromptStages(
            tokens=report.total,
            cached=report.cached,
            template_ms=round(1000 * (self.prepared_s - self.began_s)),
            wait_ms=max(0, since_sent_ms - report.since_ms),
            prefill_ms=report.since_ms,
        )
        return self.stages

    def log_begin(self, frame: RequestFrame) -> None:
        """Log one line; from here on the context of this task names the request in each of them."""
        structlog.contextvars.bind_contextvars(**frame.log_fields)
        log.debug("request begins", id=self.id, work=self.tag)

    def log_end(self) -> None:
        """Log one line."""
        assert self.ended_s is not None
        log.info(
            "request ended",
            id=self.id,
            kind=self.kind,
            results=self.num_tokens,
            took_s=round(self.ended_s - self.began_s, 3),
            ending=self.ending,
        )

    def export(self, spans: SpanExport | None) -> None:
        """Send its spans, if its trace is sampled."""
        trace = None if self.trace is None else self.trace.context()
        if spans is not None and trace is not None and trace.is_sampled:
            spans.put(partial(_spans, self, trace))


def _spans(times: RequestTimes, trace: TraceContext) -> list[SpanData]:
    assert times.ended_s is not None
    assert times.trace is not None
    below = f"agent.{times.id}"
    span_id = trace.span_below(below)
    stages = times.stages
    whole = SpanData(
        times.kind,
        trace,
        span_id,
        trace.span_id,
        times.began_s,
        times.ended_s,
        kind="server",
        is_entry=True,
        attributes=filled(
            paddler__request__id=times.trace.request,
            paddler__agent__name=times.agent,
            paddler__work=times.tag,
            paddler__placement__ending=times.ending,
            paddler__placement__preemptions=times.preemptions or None,
            paddler__prompt__tokens=None if stages is None else stages.tokens,
            paddler__prompt__cached_tokens=None if stages is None else stages.cached,
            paddler__results=times.num_tokens,
            error__type=times.ending if times.ending == "handed back" else None,
        ),
        error=times.ending if times.ending == "handed back" else None,
    )
    return [
        whole,
        *(
            SpanData(name, trace, trace.span_below(f"{below}.{name}"), span_id, since_s, until_s)
            for name, since_s, until_s in _parts(times)
        ),
    ]


def _parts(times: RequestTimes) -> Iterator[tuple[str, float, float]]:
    """Yield each part with its beginning and its end."""
    ended_s, prepared_s, first_s = times.ended_s, times.prepared_s, times.first_s
    assert ended_s is not None
    yield "prepare", times.began_s, prepared_s or ended_s
    if prepared_s is None or first_s is None or times.kind != "generation":
        return
    wait_s = 0.0 if times.stages is None else times.stages.wait_ms / 1000
    in_engine_s = min(first_s, prepared_s + wait_s)
    yield "engine queue", prepared_s, in_engine_s
    yield "prefill", in_engine_s, first_s
    yield "decode", first_s, ended_s
