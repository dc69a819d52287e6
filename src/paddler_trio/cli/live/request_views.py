"""Requests as the balancer shows them: in flight, finished, and each in detail.

All times are milliseconds of the balancer's own clock; :class:`Clock` turns them into the hours of
whoever reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import attrs

from paddler_trio.cli.management_client import Json

FINISHED = "ended"


@attrs.frozen(kw_only=True)
class QueueStay:
    """One stay in the queue; ``positions`` are pairs of a time and how many stood before it."""

    since_ms: int
    until_ms: int | None = None
    positions: list[list[int]] = attrs.field(factory=list)


@attrs.frozen(kw_only=True)
class PlacementView:
    """One stay on an agent; what is not known (yet) is None."""

    agent: str
    agent_key: int | None = None
    lane: int | None = None
    at_ms: int
    why: str = ""
    prepared_ms: int | None = None
    first_ms: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    wait_ms: float | None = None
    prefill_ms: float | None = None
    template_ms: float | None = None
    ended_ms: int | None = None
    ending: str | None = None
    revision: int | None = None


@attrs.frozen(kw_only=True)
class EndingView:
    """``kind``: ``done``, ``refused``, ``failed``, ``stopped`` or ``cancelled``."""

    kind: str
    code: int | None = None
    text: str | None = None
    finish: str | None = None


@attrs.frozen(kw_only=True)
class StateView:
    """A state in the few words of the balancer."""

    state: str = ""
    word: str = ""
    severity: str = ""
    sentence: str = ""


@attrs.frozen(kw_only=True)
class CaptureView:
    """The beginnings of both texts, where the operator has them kept."""

    request: str | None = None
    answer: str | None = None


@attrs.frozen(kw_only=True)
class RequestView:
    """One request, from its arrival to its ending. ``raw`` is what the balancer sent."""

    key: int
    id: str = ""
    client: str = ""
    source: str = ""
    deployment: str = "default"
    preset: str | None = None
    kind: str = "generation"
    route: str | None = None
    trace: str | None = None
    phase: str = ""
    state: StateView = attrs.field(factory=StateView)
    arrived_ms: int
    position: int | None = None
    queue: list[QueueStay] = attrs.field(factory=list)
    placements: list[PlacementView] = attrs.field(factory=list)
    first_result_ms: int | None = None
    tokens: int = 0
    progress: list[list[int]] = attrs.field(factory=list)
    continuations: int = 0
    ended_ms: int | None = None
    ending: EndingView | None = None
    capture: CaptureView | None = None
    raw: Json = attrs.field(factory=dict, eq=False, repr=False)

    @property
    def is_finished(self) -> bool:
        return self.phase == FINISHED

    @property
    def placement(self) -> PlacementView | None:
        """The newest one."""
        return self.placements[-1] if self.placements else None

    @property
    def agent(self) -> str:
        """The agent where it is, or was last; empty before it is placed."""
        return self.placement.agent if self.placement is not None else ""

    @property
    def place(self) -> str:
        """The agent and the slot; empty before it is placed."""
        last = self.placement
        if last is None:
            return ""
        return last.agent if last.lane is None else f"{last.agent}:{last.lane}"

    @property
    def who(self) -> str:
        """The name of its client, else what is known of where it came from."""
        return self.client or self.source

    @property
    def what(self) -> str:
        """The route it came by, or its kind."""
        return self.route or self.kind

    def age_ms(self, now_ms: int) -> int:
        """Return the time from its arrival to its ending, or until now."""
        return (now_ms if self.ended_ms is None else self.ended_ms) - self.arrived_ms

    def waited_ms(self, now_ms: int) -> int:
        """All its stays in the queue together."""
        return sum(
            (min(now_ms, self.ended_ms or now_ms) if stay.until_ms is None else stay.until_ms)
            - stay.since_ms
            for stay in self.queue
        )

    @property
    def first_after_ms(self) -> int | None:
        """The time from its arrival to its first result."""
        return None if self.first_result_ms is None else self.first_result_ms - self.arrived_ms

    def tokens_per_s(self, now_ms: int) -> float | None:
        """Since its first result; None for fewer than two tokens."""
        if self.first_result_ms is None or self.tokens < 2:
            return None
        elapsed_ms = (now_ms if self.ended_ms is None else self.ended_ms) - self.first_result_ms
        return (self.tokens - 1) * 1000 / elapsed_ms if elapsed_ms > 0 else None

    @property
    def ending_words(self) -> str:
        """The words for how it ended, with code and text; empty while it is in flight."""
        if self.ending is None:
            return ""
        code = "" if self.ending.code is None else f" {self.ending.code}"
        words = self.state.word or f"{self.ending.kind}{code}"
        return f"{words}: {self.ending.text}" if self.ending.text else words


@attrs.frozen(kw_only=True)
class RequestsPage:
    """Requests, newest first. ``next``: the key to go on ``before``; None at the end."""

    now_ms: int
    time: str
    requests: list[RequestView]
    next: int | None = None


@attrs.frozen(kw_only=True)
class RequestDetail:
    """One request, and the balancer's sentences about it."""

    now_ms: int
    time: str
    request: RequestView
    explanation: list[str] = attrs.field(factory=list)


@attrs.frozen
class Clock:
    """One moment on both clocks: the balancer's milliseconds, and the time of day."""

    now_ms: int
    now: datetime

    @classmethod
    def of(cls, now_ms: int, time: str) -> Clock:
        """ValueError if ``time`` is not RFC 3339."""
        return cls(now_ms, datetime.fromisoformat(time))

    def at(self, ms: int) -> datetime:
        """Return a time in the zone of this machine."""
        return (self.now + timedelta(milliseconds=ms - self.now_ms)).astimezone()

    def utc(self, ms: int) -> str:
        """RFC 3339, to the millisecond."""
        then = (self.now + timedelta(milliseconds=ms - self.now_ms)).astimezone(UTC)
        return f"{then:%Y-%m-%dT%H:%M:%S}.{then.microsecond // 1000:03}Z"

    def hours(self, ms: int) -> str:
        """``HH:MM:SS.mmm``, with the date if it is another day than now."""
        then = self.at(ms)
        text = f"{then:%H:%M:%S}.{then.microsecond // 1000:03}"
        return text if then.date() == self.now.astimezone().date() else f"{then:%Y-%m-%d} {text}"


def with_raw(requests: Sequence[RequestView], raws: object) -> list[RequestView]:
    """Return the same views, each with what it was read from."""
    found = raws if isinstance(raws, list) else []
    return [
        attrs.evolve(each, raw=raw if isinstance(raw, dict) else {})
        for each, raw in zip(requests, found, strict=True)
    ]
