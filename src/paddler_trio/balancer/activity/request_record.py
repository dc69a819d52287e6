"""Record what happened to one request, in times only: stays in the queue, placements, speed,
ending.

All lists are bounded: marks of progress and positions are thinned out when they are too many, and a
request has no more placements than continuations. Times are seconds of Trio's clock; in the view
they are milliseconds.
"""

from __future__ import annotations

from array import array
from typing import Final, Literal, TypeAlias

import attrs

from paddler_trio.balancer.activity.measures.endings import refused_with
from paddler_trio.balancer.activity.moments import ms
from paddler_trio.balancer.activity.placement_words import MAX_TEXT_CHARS, Reason, why
from paddler_trio.net.server.client_identity import SOURCE
from paddler_trio.nursery_tree.forwarded_work import ForwardedWork
from paddler_trio.nursery_tree.request import Buffered, Ended, Leased, Request, Stopping, Streaming
from paddler_trio.nursery_tree.request_endings import Completed, Ending, Failure
from paddler_trio.scheduler.truth.request_truth import EndingFacts, truth_of_ending, truth_of_flight
from paddler_trio.scheduler.truth.truths import Truth
from paddler_trio.wire.trio.prompt_stages import PromptStages
from paddler_trio.wire.trio.request_frame import EncodedWork

MAX_MARKS: Final = 32

Kind: TypeAlias = Literal["generation", "embedding", "rank", "forwarded"]
Mark: TypeAlias = "tuple[float, int]"
"""A moment, and a number at this moment."""

_PHASES: Final = {
    Buffered: "buffered",
    Leased: "leased",
    Streaming: "streaming",
    Stopping: "stopping",
    Ended: "ended",
}


@attrs.define
class Marks:
    """A number as it changed, in at most ``MAX_MARKS`` moments: when there are more, every other
    one is dropped, and from then on they are taken half as often."""

    pause_s: float = 0.5
    """At least so long between two of them."""
    _flat: list[float] = attrs.field(factory=list)
    """Moment, number, moment, number and so on."""

    def add(self, now_s: float, number: int) -> None:
        """Note that at this moment the number was this."""
        flat = self._flat
        if flat and now_s - flat[-2] < self.pause_s:
            return
        if len(flat) >= 2 * (MAX_MARKS - 1):
            self._flat = flat = [
                value for at in range(0, len(flat), 4) for value in flat[at : at + 2]
            ]
            self.pause_s *= 2
        flat += (now_s, number)

    def all(self) -> list[Mark]:
        """Return all of them in the order of time."""
        flat = self._flat
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return [(moment_s, int(number)) for moment_s, number in pairs]

    def pack(self) -> bytes:
        """Return one small block; see ``finished_requests.py``."""
        return array("d", self._flat).tobytes()

    @classmethod
    def unpack(cls, block: bytes) -> Marks:
        """Return what ``pack`` made, as a record again."""
        return cls(flat=array("d", block).tolist())

    def view(self) -> list[list[int]]:
        return [[ms(moment_s), number] for moment_s, number in self.all()]


@attrs.define
class Stay:
    """One stay in the queue.

    Args:
      positions: how many were before it.
      obstacle: why the whole queue waited when somebody looked last; empty if it only took turns.
    """

    since_s: float
    until_s: float | None = None
    positions: Marks = attrs.field(factory=lambda: Marks(pause_s=0.0))
    obstacle: str = ""


@attrs.define
class PlacementRecord:
    """One slot that it had.

    Args:
      lane: the lowest number that no other request on this agent had.
      reason: why the agent got it.
      ending: ``done``, ``refused``, ``stopped``, or ``failed``, ``lost`` or ``handed back`` with
        the reason.
      preemptions: how often the engine gave its cells to others for a while.
      preempted_s: when it did, the first of them, if the agent reports it.
      revision: the number of the state that the agent served, if that is known.
    """

    agent: str
    agent_key: int
    lane: int
    at_s: float
    reason: Reason | None
    prepared_s: float | None = None
    first_s: float | None = None
    prompt: PromptStages | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    ended_s: float | None = None
    ending: str | None = None
    preemptions: int = 0
    preempted_s: tuple[float, ...] = ()
    revision: int | None = None

    @property
    def why(self) -> str:
        """Return why the agent got it, in words; empty if it is not known."""
        return why(self.reason)

    def view(self) -> dict[str, object]:
        prompt = self.prompt
        return {
            "agent": self.agent,
            "agent_key": self.agent_key,
            "lane": self.lane,
            "at_ms": ms(self.at_s),
            "why": self.why,
            "prepared_ms": _ms(self.prepared_s),
            "first_ms": _ms(self.first_s),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "template_ms": None if prompt is None else prompt.template_ms,
            "wait_ms": None if prompt is None else prompt.wait_ms,
            "prefill_ms": None if prompt is None else prompt.prefill_ms,
            "ended_ms": _ms(self.ended_s),
            "ending": self.ending,
            "preemptions": self.preemptions,
            "preempted_ms": [ms(each) for each in self.preempted_s],
            "revision": self.revision,
        }


@attrs.define(eq=False)
class Capture:
    """The beginnings of a request's JSON and of its answer's text, UTF-8; see ``captures.py``.
    Empty once it is forgotten."""

    request: bytes
    answer: bytearray = attrs.field(factory=bytearray)

    def view(self) -> dict[str, str] | None:
        """A character that is cut off at the end is left out."""
        if not self.request:
            return None
        return {
            "request": self.request.decode(errors="ignore"),
            "answer": self.answer.decode(errors="ignore"),
        }


@attrs.define(eq=False, repr=False)
class RequestRecord:
    """See the module docstring."""

    key: int
    id: str
    client: str
    deployment: str
    kind: Kind
    route: str | None
    arrived_s: float
    phase: str = "buffered"
    position: int | None = None
    stays: list[Stay] = attrs.field(factory=list)
    placements: list[PlacementRecord] = attrs.field(factory=list)
    first_s: float | None = None
    tokens: int = 0
    progress: Marks = attrs.field(factory=Marks)
    continuations: int = 0
    ended_s: float | None = None
    ending: Ending | None = None
    refusal: tuple[int, str] | None = None
    """The status and the text with which its agent, or the server behind it, refused it: for the
    balancer that is an answer as any other."""
    finish: str | None = None
    """One of ``FINISHES``."""
    calls_tools: bool = False
    capture: Capture | None = None
    trace: str | None = None
    """The id of its trace."""
    source: str = ""
    """Where it came from, of a client without a name: its address, program and user."""
    preset: str = ""
    """The preset that it was made under; empty for none."""

    @classmethod
    def of(cls, request: Request) -> RequestRecord:
        """Return the record of a request that has just arrived, in the task of its client."""
        source = None if request.client_name else SOURCE.get()
        return cls(
            request.key,
            request.id[:MAX_TEXT_CHARS],
            request.client_name[:MAX_TEXT_CHARS],
            request.deployment[:MAX_TEXT_CHARS],
            kind_of(request.work),
            None if request.route is None else request.route[:MAX_TEXT_CHARS],
            request.arrived_s,
            trace=request.trace_id,
            source="" if source is None else source.words,
            preset=request.preset,
        )

    def __repr__(self) -> str:
        return f"<RequestRecord {self.key} {self.phase}, {self.tokens} tokens>"

    @property
    def agents(self) -> list[str]:
        """Return those that it was given to, in order."""
        return [placement.agent for placement in self.placements]

    @property
    def ending_kind(self) -> str | None:
        """One of ``ENDINGS``; None as long as it goes on."""
        facts = self.ending_facts
        return None if facts is None else facts.kind

    @property
    def ending_facts(self) -> EndingFacts | None:
        """Return how it ended, refusals of its agent included; None as long as it goes on."""
        match self.ending:
            case None:
                return None
            case Failure(code, description):
                text = description[:MAX_TEXT_CHARS]
                return EndingFacts(ended="failure", code=code, text=text)
            case Completed():
                if self.refusal is None:
                    return EndingFacts(ended="completed", finish=self.finish)
                status, text = self.refusal
                return EndingFacts(ended="completed", code=status, text=text)
            case _:
                return EndingFacts(ended="stopped")

    @property
    def truth(self) -> Truth:
        """Return where it is, or how it ended, in words."""
        facts = self.ending_facts
        if facts is None:
            return truth_of_flight(self.phase, self.position)
        return truth_of_ending(facts)

    def enters(self, request: Request, now_s: float) -> None:
        """The request is in this phase now."""
        self.phase = _PHASES[type(request.phase)]
        self.continuations = request.continuations
        if request.is_over and self.ending is None:
            self.ending = request.ending
            status = refused_with(request.answered_with)
            if status is not None and self.refusal is None:
                self.refusal = status, f"its server answered with {status}"
        if isinstance(request.phase, Ended):
            self.ended_s = now_s
            self.progress.pause_s = 0.0
            self.progress.add(now_s, self.tokens)

    def view(self, now_s: float, *, brief: bool = False) -> dict[str, object]:
        """Return the record as JSON; ``brief``: without what only a look at this one request
        needs."""
        ending, truth = self.ending_facts, self.truth
        return {
            "key": self.key,
            "id": self.id,
            "client": self.client,
            "source": self.source,
            "deployment": self.deployment,
            "preset": self.preset or None,
            "kind": self.kind,
            "route": self.route,
            "trace": self.trace,
            "phase": self.phase,
            "state": {"state": truth.state, "word": truth.word, "severity": truth.severity},
            "arrived_ms": ms(self.arrived_s),
            "position": self.position if self.phase == "buffered" else None,
            "queue": [
                {
                    "since_ms": ms(stay.since_s),
                    "until_ms": _ms(stay.until_s),
                    "obstacle": stay.obstacle or None,
                    "positions": []
                    if brief and stay.until_s is not None
                    else stay.positions.view(),
                }
                for stay in self.stays
            ],
            "placements": [placement.view() for placement in self.placements],
            "first_result_ms": _ms(self.first_s),
            "tokens": self.tokens,
            "progress": [] if brief else self.progress.view(),
            "continuations": self.continuations,
            "ended_ms": _ms(self.ended_s),
            "ending": None
            if ending is None
            else {
                "kind": ending.kind,
                "code": ending.code,
                "text": ending.text or None,
                "finish": ending.finish,
            },
            "capture": None if brief or self.capture is None else self.capture.view(),
        }


def kind_of(work: EncodedWork | ForwardedWork) -> Kind:
    """Read the kind from the tag that its JSON begins with."""
    if isinstance(work, ForwardedWork):
        return "forwarded"
    tag = work.body[:40].partition(b'"')[2].partition(b'"')[0]
    if tag == b"Rank":
        return "rank"
    return "embedding" if work.is_embedding_batch or tag.startswith(b"Embed") else "generation"


def slot_ending(request: Request) -> str:
    """Return how a slot ended that was not lost."""
    match request.ending:
        case Completed():
            return "done" if refused_with(request.answered_with) is None else "refused"
        case Failure(_, description):
            return f"failed: {description}"[:MAX_TEXT_CHARS]
        case _:
            return "stopped"


def _ms(moment_s: float | None) -> int | None:
    return None if moment_s is None else ms(moment_s)
