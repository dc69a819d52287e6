"""Decide when an agent may get work after it was sent a new desired state.

Ours report which state they serve, so the answer is a comparison. A Paddler 4.1 agent does not; it
drains, falls to zero slots and climbs again, and a request that slips in between can block its
drain for ever. So after a ``SetState`` such an agent gets nothing until it was seen with
zero slots and then with some. If it holds no request of ours, that must happen within moments;
when it does not, the state needed no reload or cannot be resolved, and it serves as before.
"""

from __future__ import annotations

import attrs

UNCHANGED_AFTER_S = 1.0


@attrs.define
class SwapGate:
    """The gate of one Paddler 4.1 agent; all times are the caller's monotonic seconds."""

    _closed_at_s: float | None = attrs.field(default=None, init=False)
    _seen_empty: bool = attrs.field(default=False, init=False)

    def close(self, *, slots_total: int, now_s: float) -> None:
        """A ``SetState`` goes out now."""
        self._closed_at_s = now_s
        self._seen_empty = slots_total <= 0

    def released(self, *, now_s: float) -> None:
        """Note that a request has left the agent: only now may it find itself drained."""
        if self._closed_at_s is not None:
            self._closed_at_s = now_s

    def is_open(self, *, slots_total: int, slots_processing: int, now_s: float) -> bool:
        """Return whether the agent may get work. Ask at every status update; ``slots_total`` is the
        reported one."""
        if self._closed_at_s is None:
            return True
        if slots_total <= 0:
            self._seen_empty = True
            return False
        if slots_processing > 0 and not self._seen_empty:
            return False  # it drains first; the moments count from the last request
        if self._seen_empty or now_s - self._closed_at_s >= UNCHANGED_AFTER_S:
            self._closed_at_s = None
            return True
        return False
