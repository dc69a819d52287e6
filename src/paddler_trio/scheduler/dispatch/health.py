"""Passive health: an agent that keeps failing gets no requests for a while and comes back slowly.

Nothing is probed; what is judged is what happens to real requests. After ``threshold`` failures in
a row an agent is *ejected* for a time that doubles with every ejection; afterwards, and after it
was away, it *ramps up*: its slots open one share at a time. Never more than half of the fleet is
ejected: when most agents fail, the cause is not the agents, and some service beats none.

Agents are known by name here, not by connection, because a restart must not wipe the record.
"""

from __future__ import annotations

from collections import Counter

import attrs


@attrs.frozen
class HealthLimits:
    """Times in seconds."""

    threshold: int = 3
    first_ejection_s: float = 2.0
    longest_ejection_s: float = 60.0
    ramp_up_s: float = 5.0


@attrs.define
class _Record:
    failures_in_a_row: int = 0
    ejections: int = 0
    ejected_until_s: float | None = None
    ramping_since_s: float | None = None
    last_seen_s: float = 0.0


_FORGET_AFTER_S = 3600.0
_MAX_RECORDS = 4096
_MAX_DOUBLINGS = 64


@attrs.define
class HealthTracker:
    """The records of all agents; every time is the caller's monotonic ``now_s``."""

    limits: HealthLimits = attrs.field(factory=HealthLimits)
    _records: dict[str, _Record] = attrs.field(factory=dict, init=False)
    _connected: Counter[str] = attrs.field(factory=Counter, init=False)
    """The number of connections that go by each name: an agent that reconnects has two for a
    moment."""

    def joined(self, agent: str, now_s: float) -> None:
        """Note that an agent connects; one that was here before ramps up."""
        self._connected[agent] += 1
        record = self._records.get(agent)
        if record is None:
            self._forget_old(now_s)
            self._records[agent] = _Record(last_seen_s=now_s)
        else:
            record.last_seen_s = now_s
            record.failures_in_a_row = 0
            record.ramping_since_s = now_s

    def left(self, agent: str, now_s: float, *, gracefully: bool) -> None:
        """Note that an agent's connection ended; one that deregistered comes back as if it had
        never been away."""
        self._connected[agent] -= 1
        is_here = self._connected[agent] > 0
        if not is_here:
            del self._connected[agent]
        if gracefully and not is_here:
            self._records.pop(agent, None)
        elif agent in self._records:
            self._records[agent].last_seen_s = now_s

    def succeeded(self, agent: str) -> None:
        """Note that the agent finished a request: whatever was wrong is over."""
        record = self._records.get(agent)
        if record is not None:
            record.failures_in_a_row = 0
            if record.ejected_until_s is None:
                record.ejections = 0

    def failed(self, agent: str, now_s: float) -> float | None:
        """Note that a request failed by the agent's fault; return the length of the ejection if
        this caused one."""
        record = self._records.get(agent)
        if record is None:
            return None
        record.failures_in_a_row += 1
        if record.failures_in_a_row < self.limits.threshold or not self._may_eject(agent, now_s):
            return None
        doublings = min(record.ejections, _MAX_DOUBLINGS)
        length_s = min(
            self.limits.first_ejection_s * 2.0**doublings, self.limits.longest_ejection_s
        )
        record.ejections += 1
        record.failures_in_a_row = 0
        record.ejected_until_s = now_s + length_s
        return length_s

    def is_ejected(self, agent: str, now_s: float) -> bool:
        """Return whether the agent gets no work now. The end of an ejection begins its ramp."""
        record = self._records.get(agent)
        if record is None or record.ejected_until_s is None:
            return False
        if now_s < record.ejected_until_s:
            return True
        record.ramping_since_s = record.ejected_until_s
        record.ejected_until_s = None
        return False

    def ejected_until_s(self, agent: str, now_s: float) -> float | None:
        """Return when an ejected agent gets work again; None if it is not ejected now."""
        record = self._records.get(agent)
        if record is None or record.ejected_until_s is None or now_s >= record.ejected_until_s:
            return None
        return record.ejected_until_s

    def usable_slots(self, agent: str, slots_total: int, now_s: float) -> int:
        """Return how many of an agent's slots may be used: at least one, all of them after the
        ramp."""
        record = self._records.get(agent)
        if record is None or record.ramping_since_s is None or slots_total <= 0:
            return slots_total
        share = (now_s - record.ramping_since_s) / self.limits.ramp_up_s
        if share >= 1.0:
            record.ramping_since_s = None
            return slots_total
        return max(1, int(slots_total * share))

    def _may_eject(self, agent: str, now_s: float) -> bool:
        ejected = sum(self.is_ejected(other, now_s) for other in self._connected if other != agent)
        return (ejected + 1) * 2 <= len(self._connected)

    def _forget_old(self, now_s: float) -> None:
        if len(self._records) >= _MAX_RECORDS:
            self._records = {
                name: record
                for name, record in self._records.items()
                if name in self._connected or now_s - record.last_seen_s < _FORGET_AFTER_S
            }
