"""Decide how long passes may wait while prefixes are copied to host memory.

llama.cpp copies a whole sequence in one call, and no pass can run meanwhile. So copies happen
between passes, each of them short beside a pass, and all of them together a small part of the time;
what does not fit waits until the engine is idle, or is never copied.
"""

from __future__ import annotations

import attrs

_FRACTION = 1 / 64
"""The part of the time that passes take which copies may take."""
_TARGET_FRACTION = 1 / 4
"""The part of the time a pass with prompts may take which copies before one pass may take."""
_WORTH = 1 / 4
"""The part of the time that computing a prefix again takes which copying it may take."""
_FIRST_MS_PER_BYTE = 1e3 / 4e9
_SMALLEST_MEASURED = 1 << 20
"""Bytes; what fewer take says little about more."""
_FRESH = 0.25
"""Weight of the newest measurement."""
_FORGOTTEN = 1 / 4096
"""A measurement counts so much less after each pass: a copy that was slow once, on a machine that
was busy, does not forbid copies for ever."""
_IDLE_S = 0.05
"""Idle for so long, the engine will probably stay idle for a moment."""
_IDLE_MULTIPLE = 8
"""Idle for so many times what a copy takes, it will probably stay idle that long."""


@attrs.define
class SaveBudget:
    """Time for copies, in ms: earned by passes, spent by copies."""

    _limit_ms: float = attrs.field(default=0.0, init=False)
    _credit_ms: float | None = attrs.field(default=None, init=False)
    """None before the first pass: then there is as much as there can be."""
    _ms_per_byte: float = attrs.field(default=_FIRST_MS_PER_BYTE, init=False)

    def passed(self, pass_ms: float, *, target_ms: float) -> None:
        """Note that a pass took so long, and one with prompts may take ``target_ms``."""
        self._limit_ms = _TARGET_FRACTION * target_ms
        before = self._limit_ms if self._credit_ms is None else self._credit_ms
        self._credit_ms = min(self._limit_ms, before + _FRACTION * pass_ms)
        self._ms_per_byte += _FORGOTTEN * min(0.0, _FIRST_MS_PER_BYTE - self._ms_per_byte)

    def saved(self, num_bytes: int, took_ms: float) -> None:
        """Note that a copy of so many bytes took so long."""
        if self._credit_ms is not None:
            self._credit_ms -= took_ms
        if num_bytes >= _SMALLEST_MEASURED:
            self._ms_per_byte += _FRESH * (took_ms / num_bytes - self._ms_per_byte)

    def cost_ms(self, num_bytes: int) -> float:
        """Return how long a copy will take."""
        return num_bytes * self._ms_per_byte

    def affords(self, num_bytes: int) -> bool:
        """Return whether the next pass may wait for a copy of so many bytes."""
        return self._credit_ms is not None and self.cost_ms(num_bytes) <= self._credit_ms

    def is_worth(self, num_bytes: int, *, compute_ms: float | None) -> bool:
        """Return whether copying costs little beside computing again, which takes ``compute_ms`` if
        known."""
        return compute_ms is None or self.cost_ms(num_bytes) <= _WORTH * compute_ms

    def idle_wait_s(self, num_bytes: int) -> float:
        """Return how long the engine must have been idle before such a copy."""
        return max(_IDLE_S, _IDLE_MULTIPLE * self.cost_ms(num_bytes) / 1e3)
