"""Limits of one API key."""

from __future__ import annotations

from typing import Final

import attrs

MAX_REQUESTS_PER_MINUTE: Final = 1_000_000
MAX_CONCURRENT: Final = 100_000
MAX_TOKENS_PER_DAY: Final = 10**12
MAX_TOKENS_PER_MONTH: Final = 10**13


@attrs.frozen
class KeyLimits:
    """Limits of one key; None means no limit.

    Args:
      requests_per_minute: in any sixty seconds.
      max_concurrent: requests at once, those that wait for a slot included.
      tokens_per_day: of prompts and answers, in a day of UTC.
      tokens_per_month: the same in a month of the calendar, UTC.
    """

    requests_per_minute: int | None = None
    max_concurrent: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None

    def __bool__(self) -> bool:
        """Return whether there is a limit."""
        return self != NO_LIMITS

    def as_json(self) -> dict[str, int | None]:
        """Return all limits by their names."""
        return {name: getattr(self, name) for name in MOST}


MOST: Final = {
    "requests_per_minute": MAX_REQUESTS_PER_MINUTE,
    "max_concurrent": MAX_CONCURRENT,
    "tokens_per_day": MAX_TOKENS_PER_DAY,
    "tokens_per_month": MAX_TOKENS_PER_MONTH,
}
"""The greatest value of each limit, by its name; the least is 1."""
NO_LIMITS: Final = KeyLimits()
