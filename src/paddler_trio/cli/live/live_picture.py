"""The picture of a fleet that is made of an event feed, one event after the other.

The first event of a balancer has everything, the next ones what is different. Where events were
missed, the balancer sends everything again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import attrs
import cattrs
from cattrs.errors import BaseValidationError

from paddler_trio.cli.balancer_http import BalancerVersionError
from paddler_trio.cli.live.problems_command import ProblemView
from paddler_trio.cli.live.request_views import RequestView
from paddler_trio.cli.management_client import CONVERTER, AgentView, Json

LANE_LETTERS = {"q": "waits for the engine", "p": "prefill", "d": "decode", "s": "stopping"}


@attrs.frozen(kw_only=True)
class BufferView:
    waiting: int = 0
    limit: int = 0
    timeout_ms: float = 0


@attrs.frozen(kw_only=True)
class SlotsView:
    busy: int = 0
    total: int = 0


@attrs.frozen(kw_only=True)
class BalancerView:
    """``started``: RFC 3339."""

    version: str = ""
    started: str | None = None
    draining: bool = False
    buffer: BufferView = BufferView()
    slots: SlotsView = SlotsView()
    loop_lag_ms: float | None = None
    revision: int | None = None


@attrs.frozen(kw_only=True)
class RatesView:
    """Over the last seconds; ``cached_ratio``: 0..1 of the prompt tokens."""

    prompt_tokens_per_s: float | None = None
    generated_tokens_per_s: float | None = None
    cached_ratio: float | None = None


@attrs.frozen(kw_only=True)
class LiveAgent(AgentView):
    """An agent with what the feed adds.

    ``key`` is the number of its connection. ``lanes`` are its requests: triples of a request's key,
    a letter of ``LANE_LETTERS`` and since when.
    """

    key: int
    joined_ms: int | None = None
    rates: RatesView | None = None
    ejected_until_ms: int | None = None
    engine_restarts: int = 0
    lanes: list[list[object]] = attrs.field(factory=list)

    @property
    def slots_idle(self) -> int:
        return max(0, self.slots_total - self.slots_processing)

    def lane_letters(self, most: int) -> str:
        """Return what each slot does, one character a slot, dots for idle ones."""
        letters = "".join(
            str(lane[1]) if len(lane) > 1 and lane[1] in LANE_LETTERS else "?"
            for lane in self.lanes
        )
        slots = letters.ljust(self.slots_total, "·")
        return slots if len(slots) <= most else f"{slots[: most - 1]}+"


@attrs.frozen(kw_only=True)
class HeldView:
    reason: str = ""
    until_ms: int | None = None


@attrs.frozen(kw_only=True)
class DeploymentView:
    """``waiting`` and ``running`` are requests, ``serving`` agents."""

    aliases: list[str] = attrs.field(factory=list)
    phase: str | None = None
    waiting: int = 0
    oldest_wait_ms: float | None = None
    running: int = 0
    slots: int = 0
    serving: int = 0
    held: HeldView | None = None


T = TypeVar("T")


VIEWS: Final[Mapping[str, type]] = {
    "agents": LiveAgent,
    "deployments": DeploymentView,
    "requests": RequestView,
    "problems": ProblemView,
}
"""The topics that have rows, and what a row is; a picture has its rows under the same name."""
TOPICS: Final = ("balancer", *VIEWS)


@attrs.define(eq=False)
class LivePicture:
    """``raw`` is what the feed holds now, by topic and key."""

    now_ms: int = 0
    time: str = ""
    epoch: str = ""
    seq: int = -1
    raw: dict[str, dict[str, object]] = attrs.field(factory=dict)
    agents: dict[str, LiveAgent] = attrs.field(factory=dict)
    deployments: dict[str, DeploymentView] = attrs.field(factory=dict)
    requests: dict[str, RequestView] = attrs.field(factory=dict)
    balancer: BalancerView = attrs.field(factory=BalancerView)
    problems: dict[str, ProblemView] = attrs.field(factory=dict)
    updated_ms: dict[str, int] = attrs.field(factory=dict)
    """When the balancer had last something new to say of an agent, by its key."""

    @property
    def event_id(self) -> str | None:
        """The id of the last event; None before the first."""
        return None if self.seq < 0 else f"{self.epoch}.{self.seq}"

    def apply(self, event: Json) -> None:
        """Take in one event; BalancerVersionError if it is none."""
        try:
            epoch, seq, is_full = str(event["epoch"]), event["seq"], bool(event["full"])
            now_ms, time = event["now_ms"], str(event["time"])
            made, gone = event.get("set", {}), event.get("gone", {})
        except KeyError as error:
            raise BalancerVersionError(f"an event of the balancer has no {error}") from error
        if not (isinstance(seq, int) and isinstance(now_ms, int)):
            raise BalancerVersionError("an event of the balancer has no number")
        if not (isinstance(made, dict) and isinstance(gone, dict)):
            raise BalancerVersionError("an event of the balancer sets no topics")
        if is_full:
            self._clear()
        self.epoch, self.seq, self.now_ms, self.time = epoch, seq, now_ms, time
        for topic in TOPICS:
            self._set(topic, made.get(topic, {}))
            for key in gone.get(topic, ()):
                self._forget(topic, str(key))

    def _clear(self) -> None:
        self.raw.clear()
        self.updated_ms.clear()
        for topic in VIEWS:
            self._rows(topic).clear()
        self.balancer = BalancerView()

    def _rows(self, topic: str) -> dict[str, object]:
        rows: dict[str, object] = getattr(self, topic)
        return rows

    def _set(self, topic: str, values: Mapping[str, object]) -> None:
        if not isinstance(values, Mapping):
            raise BalancerVersionError(f"the topic {topic} of an event is no object")
        self.raw.setdefault(topic, {}).update(values)
        for key, value in values.items():
            if topic == "balancer":
                self.balancer = read_view(value, BalancerView)
                continue
            self._rows(topic)[key] = read_view(value, VIEWS[topic])
            if topic == "agents":
                self.updated_ms[key] = self.now_ms

    def _forget(self, topic: str, key: str) -> None:
        self.raw.get(topic, {}).pop(key, None)
        if topic == "agents":
            self.updated_ms.pop(key, None)
        if topic != "balancer":
            self._rows(topic).pop(key, None)

    def document(self) -> Json:
        """Return what is known now, as one JSON object."""
        topics = {topic: dict(self.raw.get(topic, {})) for topic in TOPICS}
        return {"now_ms": self.now_ms, "time": self.time, **topics}


def read_view(value: object, shape: type[T]) -> T:
    """A value that the balancer sent, as a view; BalancerVersionError if it has another shape."""
    try:
        return CONVERTER.structure(value, shape)
    except (BaseValidationError, TypeError, ValueError) as error:
        problems = "; ".join(cattrs.transform_error(error))
        raise BalancerVersionError(f"the balancer is of another version: {problems}") from error
