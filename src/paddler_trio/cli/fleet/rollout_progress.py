"""The end of a wait for a revision, decided from what the balancer shows, without a clock.

Each deployment that is waited for has one ending. A deployment whose rollout is not shown is looked
up in the state of the fleet: its rollout may not have begun, none may be needed (agents serve it
already, or only their number changes), or another revision may have come. That state counts agents
that serve exactly what the newest revision has.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import attrs

from paddler_trio.cli.fleet.fleet_client import FleetStateView, RolloutsView, RolloutView
from paddler_trio.cli.terminal import DONE, FAILED, ROLLED_BACK, TIMED_OUT

STUCK_S: Final = 5.0
"""How long agents may do nothing after one failed: a rollback or another attempt begins earlier."""
WORKING: Final = frozenset({"prefetching", "draining", "loading", "probing"})
PAUSED_REASON: Final = "paused by"
"""The reason of a pause that somebody ordered begins so: it is waited for."""
ROLLED_BACK_NOTE: Final = "{name} rolled back: "
"""The note of a revision that a rollback stored begins so; then comes the reason."""
ABORTED_REASON: Final = "aborted by"


class Ending(StrEnum):
    """The ending of the rollout of one deployment, as far as it is waited for."""

    COMPLETE = "complete"
    ROLLED_BACK = "rolled back"
    ABORTED = "aborted"
    PAUSED = "paused"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    TIMED_OUT = "timed out"

    @property
    def exit_code(self) -> int:
        return {
            Ending.COMPLETE: DONE,
            Ending.ROLLED_BACK: ROLLED_BACK,
            Ending.TIMED_OUT: TIMED_OUT,
        }.get(self, FAILED)


@attrs.frozen
class Ended:
    """The ending for a deployment; ``reason`` is empty if there is nothing to say."""

    deployment: str
    ending: Ending
    reason: str = ""


@attrs.define
class RolloutProgress:
    """Feed it what the balancer shows; ask for ``ended`` after each.

    Args:
      revision: the one that is waited for.
      specs: the deployments that are waited for, as plain JSON of that revision; None for one that
        it removes.
      unchanged: those that serve what they did before that revision, so that a rollout to an older
        one is theirs.
    """

    revision: int
    specs: Mapping[str, Mapping[str, object] | None]
    unchanged: frozenset[str] = frozenset()
    _shown: RolloutsView = attrs.field(factory=lambda: RolloutsView(rollouts=[]), init=False)
    _ended: dict[str, Ended] = attrs.field(factory=dict, init=False)
    _stuck_s: dict[str, float] = attrs.field(factory=dict, init=False)
    """Since when nothing happens, after a failure."""

    @property
    def ended(self) -> list[Ended] | None:
        """Every deployment with its ending; None while there is something to wait for."""
        if self._ended.keys() != self.specs.keys():
            return None
        return [self._ended[name] for name in self.specs]

    @property
    def asks_for_state(self) -> bool:
        """:meth:`look_at` is needed: rollouts alone do not say how far a deployment is."""
        return any(self._mine(name) is None for name in self._waiting)

    @property
    def shown(self) -> list[RolloutView]:
        """The rollouts that are waited for, as last seen."""
        return [each for each in self._shown.rollouts if each.deployment in self.specs]

    @property
    def _waiting(self) -> list[str]:
        return [name for name in self.specs if name not in self._ended]

    def observe(self, view: RolloutsView, now_s: float) -> None:
        """Take what the balancer shows of rollouts at ``now_s``; the same again lets time pass."""
        self._shown = view
        for name in self._waiting:
            rollout = self._mine(name)
            if rollout is not None:
                self._judge(rollout, now_s)

    def look_at(self, fleet: FleetStateView, now_s: float) -> None:
        """The state of the fleet at ``now_s``, for deployments without a rollout of their own."""
        is_newer = fleet.revision.revision > self.revision
        for name in self._waiting:
            if self._mine(name) is not None:
                continue
            wanted, spec = self.specs[name], fleet.revision.spec(name)
            if is_newer and spec != wanted:
                note, start = fleet.revision.note, ROLLED_BACK_NOTE.format(name=name)
                reason = note.removeprefix(start)
                if not note.startswith(start):
                    self._end(name, Ending.SUPERSEDED, _newer(fleet))
                elif reason.startswith(ABORTED_REASON):
                    self._end(name, Ending.ABORTED, reason)
                else:
                    self._end(name, Ending.ROLLED_BACK, reason)
                continue
            shown, rollout = fleet.deployment(name), self._shown.of(name)
            if rollout is not None and rollout.is_live and rollout.to is not None:
                is_later = is_newer and rollout.to > self.revision
                if is_later or name in self.unchanged:  # the same state in another revision
                    self._judge(rollout, now_s)
                continue
            is_there = shown is not None and _is_served(shown.replicas)
            has_failed = shown is not None and shown.phase == "failed"
            if self._is_stuck(name, has_failed, now_s):
                self._end(name, Ending.FAILED, "`paddler-trio agents` shows why")
                continue
            if is_there or wanted is None:
                self._end(name, Ending.COMPLETE)

    def give_up(self) -> list[Ended]:
        """The endings when time is up."""
        for name in self._waiting:
            rollout = self._shown.of(name)
            self._end(name, Ending.TIMED_OUT, "" if rollout is None else _unready(rollout))
        return [self._ended[name] for name in self.specs]

    def _mine(self, name: str) -> RolloutView | None:
        """The rollout of the revision that is waited for."""
        rollout = self._shown.of(name)
        return rollout if rollout is not None and rollout.to == self.revision else None

    def _judge(self, rollout: RolloutView, now_s: float) -> None:
        name, reason = rollout.deployment, rollout.reason or ""
        failed = [each for each in rollout.agents if each.phase == "failed"]
        is_idle = not any(each.phase in WORKING for each in rollout.agents)
        match rollout.phase:
            case "complete":
                self._end(name, Ending.COMPLETE)
            case "rolled_back":
                self._end(name, Ending.ROLLED_BACK, reason or _problems(rollout))
            case "aborted":
                self._end(name, Ending.ABORTED, reason)
            case "paused" if needs_operator(rollout):
                self._end(name, Ending.PAUSED, reason or _problems(rollout))
            case "paused" | "rolling_back":
                self._is_stuck(name, False, now_s)
            case _:
                if self._is_stuck(name, bool(failed) and is_idle, now_s):
                    self._end(name, Ending.FAILED, _problems(rollout))

    def _is_stuck(self, name: str, is_so: bool, now_s: float) -> bool:
        """Return whether it has been so for ``STUCK_S``."""
        if not is_so:
            self._stuck_s.pop(name, None)
            return False
        return now_s - self._stuck_s.setdefault(name, now_s) >= STUCK_S

    def _end(self, name: str, ending: Ending, reason: str = "") -> None:
        self._ended[name] = Ended(name, ending, reason)


def needs_operator(rollout: RolloutView) -> bool:
    """It pauses though nobody ordered that, or an agent has failed: it does not go on by itself."""
    is_ordered = (rollout.reason or "").startswith(PAUSED_REASON)
    has_failed = any(each.phase == "failed" for each in rollout.agents)
    return rollout.phase == "paused" and (has_failed or not is_ordered)


def exit_code(ended: list[Ended]) -> int:
    """Return the exit code of the command that waited: the one that asks most of the operator."""
    codes = {each.ending.exit_code for each in ended}
    return next((code for code in (ROLLED_BACK, TIMED_OUT, FAILED) if code in codes), DONE)


def _is_served(replicas: object) -> bool:
    wanted, serving = getattr(replicas, "wanted", None), getattr(replicas, "serving", 0)
    return wanted is not None and serving >= wanted


def _newer(fleet: FleetStateView) -> str:
    by = f" by {fleet.revision.author}" if fleet.revision.author else ""
    return f"revision {fleet.revision.revision}{by} took its place"


def _problems(rollout: RolloutView) -> str:
    return "; ".join(
        f"{each.agent}: {each.detail or 'it does not say why'}"
        for each in rollout.agents
        if each.phase == "failed"
    )


def _unready(rollout: RolloutView) -> str:
    counts: dict[str, list[str]] = {}
    for each in rollout.agents:
        if each.phase != "serving":
            counts.setdefault(each.phase.replace("_", " "), []).append(each.agent)
    agents = ", ".join(
        f"{phase}: {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}"
        for phase, names in counts.items()
    )
    words = rollout.phase.replace("_", " ")
    if rollout.reason:
        words += f", {rollout.reason}"
    return f"{words} ({agents})" if agents else words
