"""Count what was used, for each day, key, user and model.

Keys and models are as many as operators made. Users are named by clients, so that of one day only
so many are told apart; a key that names more loses the names of its own users, never its counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import attrs

from paddler_trio.scheduler.metering.time_samples import OTHER

MAX_USERS_OF_KEY: Final = 500
MAX_USERS: Final = 5000
"""Of one day; who comes beyond them is under "other"."""


class UsageKey(NamedTuple):
    """``day`` is of UTC, since 1970; ``key`` is empty for none, and so is ``user``."""

    day: int
    key: str
    user: str
    model: str


@attrs.define
class UsageCount:
    """Count requests that ended, and those that were refused at a limit of their key.

    Args:
      last_s: when the last of either was, seconds of Unix.
    """

    requests: int = 0
    failed: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    last_s: int = 0

    def include(self, other: UsageCount) -> None:
        """Count all of another one too."""
        self.requests += other.requests
        self.failed += other.failed
        self.refused += other.refused
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.generated_tokens += other.generated_tokens
        self.last_s = max(self.last_s, other.last_s)


@attrs.define
class UsageCounts:
    """The counts that are not stored yet, bounded for each day."""

    counts: dict[UsageKey, UsageCount] = attrs.field(factory=dict)
    _users: dict[int, dict[str, set[str]]] = attrs.field(factory=dict)
    """By day and key, those that are told apart."""

    def add(self, key: UsageKey, count: UsageCount) -> None:
        """Count this too."""
        bounded = self._bounded(key)
        known = self.counts.get(bounded)
        if known is None:
            self.counts[bounded] = attrs.evolve(count)
        else:
            known.include(count)

    def include(self, counts: Mapping[UsageKey, UsageCount]) -> None:
        """Count all of these again: they could not be stored."""
        for key, count in counts.items():
            self.add(key, count)

    def take(self) -> dict[UsageKey, UsageCount]:
        """Return them, and begin anew."""
        counts, self.counts = self.counts, {}
        return counts

    def _bounded(self, key: UsageKey) -> UsageKey:
        if not key.user:
            return key
        of_day = self._users.get(key.day)
        if of_day is None:
            while len(self._users) > 1:  # a clock that is put right comes back to one of two
                del self._users[next(iter(self._users))]
            of_day = self._users[key.day] = {}
        users = of_day.setdefault(key.key, set())
        if key.user not in users:
            if len(users) >= MAX_USERS_OF_KEY or sum(map(len, of_day.values())) >= MAX_USERS:
                return key._replace(user=OTHER)
            users.add(key.user)
        return key
