"""The fleet as the balancer's event feed shows it: the balancer, agents, deployments."""

from __future__ import annotations

import attrs

from paddler_trio.cli.management_client import AgentView

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
