"""Count what one API key has used, and decide whether it may send another request now.

Requests are counted in a window that slides: never more than the limit in sixty seconds, measured
in tenths of a second. A bucket of tokens would let twice as many through around a pause, and what
is refused could not be explained by what is shown as used. The window is a list of at most 600
counts, whatever the limit.

A request that is refused does not count, or a client that tries again would never get through.
Tokens are known when a request ends, so the last requests of a day or a month may go beyond the
limit: by what ``max_concurrent`` of them use.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import attrs

from paddler_trio.scheduler.dispatch.service_rate import ServiceRate
from paddler_trio.scheduler.limits.key_limits import KeyLimits
from paddler_trio.scheduler.limits.periods import DAY_S, PeriodCount, day_of, first_day, month_of

WINDOW_S: Final = 60
_TICKS_PER_S: Final = 10
_WINDOW_TICKS: Final = WINDOW_S * _TICKS_PER_S
CONCURRENT_RETRY_S: Final = 1
"""As long as it is not known how fast running requests end: so soon it is worth another try."""


@attrs.frozen
class Exceeded:
    """The reason why a request is refused.

    Args:
      limit: the name of the limit, as in a key file.
      allowed: its value.
      retry_after_s: when the key is below it again, in whole seconds, >= 1.
    """

    limit: str
    allowed: int
    retry_after_s: int


@attrs.frozen
class Left:
    """The rest of one limit.

    Args:
      reset_s: in how many whole seconds more is; 0 if nothing is used, None if it is not known.
      window_s: how long the time is for which it holds; None for what is at once.
    """

    limit: str
    allowed: int
    left: int
    reset_s: int | None
    window_s: int | None = None


@attrs.define
class KeyUsage:
    """See the module docstring. ``now_s`` is of a clock that never goes back, ``unix_s`` is UTC."""

    concurrent: int = 0
    days: PeriodCount = attrs.field(factory=PeriodCount)
    """Tokens of each day."""
    months: PeriodCount = attrs.field(factory=PeriodCount)
    _ticks: deque[tuple[int, int]] = attrs.field(factory=deque, init=False)
    """A tenth of a second, and the requests that began in it; oldest first."""
    _in_window: int = attrs.field(default=0, init=False)
    _endings: ServiceRate | None = attrs.field(default=None, init=False)
    """How soon one ends once another was refused for it; made then."""

    def begin(self, limits: KeyLimits, now_s: float, unix_s: float) -> Exceeded | None:
        """Note that a request arrives; return None if it may go on, which :meth:`end` must follow
        once."""
        worst: Exceeded | None = None
        for left in self.left(limits, now_s, unix_s):
            if left.left > 0:
                continue
            wait_s = self._ending_s(now_s) if left.reset_s is None else max(1, left.reset_s)
            if worst is None or wait_s > worst.retry_after_s:
                worst = Exceeded(left.limit, left.allowed, wait_s)
        if worst is not None:
            return worst
        self._count(now_s)
        self.concurrent += 1
        return None

    def more(self, number: int, limits: KeyLimits, now_s: float) -> Exceeded | None:
        """Note that a request which was let in is so many more: each answer that it has made counts
        like one of its own. Return why they may not all be made, if they may not: then none is."""
        self._advance_window(now_s)
        most = limits.requests_per_minute
        if most is not None and self._in_window + number > most:
            fits = number <= most
            wait_s = self._window_reset_s(now_s, most, number) if fits else WINDOW_S + 1
            return Exceeded("requests_per_minute", most, max(1, wait_s))
        self._count(now_s, number)
        return None

    def end(self, now_s: float) -> None:
        """Note that a request that was let in is over."""
        assert self.concurrent > 0, "a request ends that never began"
        self.concurrent -= 1
        if self._endings is not None:
            self._endings.ended(now_s, waiting=0)

    def charge(self, tokens: int, unix_s: float) -> None:
        """Note that a request has used so many tokens."""
        day = day_of(unix_s)
        self.days.add(day, tokens)
        self.months.add(month_of(day), tokens)

    def requests_last_minute(self, now_s: float) -> int:
        """Return how many requests were let in within the window."""
        self._advance_window(now_s)
        return self._in_window

    def tokens_today(self, unix_s: float) -> int:
        """Return the tokens used since midnight, UTC."""
        return self.days.at(day_of(unix_s))

    def tokens_this_month(self, unix_s: float) -> int:
        """Return the tokens used since the first of the month, UTC."""
        return self.months.at(month_of(day_of(unix_s)))

    def left(self, limits: KeyLimits, now_s: float, unix_s: float) -> list[Left]:
        """Return what is left of each limit there is."""
        self._advance_window(now_s)
        found: list[Left] = []
        if (most := limits.requests_per_minute) is not None:
            left = max(0, most - self._in_window)
            reset_s = self._window_reset_s(now_s, most)
            found.append(Left("requests_per_minute", most, left, reset_s, WINDOW_S))
        if (most := limits.max_concurrent) is not None:
            found.append(Left("max_concurrent", most, max(0, most - self.concurrent), None))
        day = day_of(unix_s)
        if (most := limits.tokens_per_day) is not None:
            used, days = self.days.at(day), (day, day + 1)
            found.append(_left_of_days("tokens_per_day", most, used, days, unix_s))
        if (most := limits.tokens_per_month) is not None:
            month = month_of(day)
            used, days = self.months.at(month), (first_day(month), first_day(month + 1))
            found.append(_left_of_days("tokens_per_month", most, used, days, unix_s))
        return found

    # ------------------------------------------------------------- private

    def _ending_s(self, now_s: float) -> int:
        """Note that one is refused because of those that run; return when one of them has likely
        ended."""
        endings = self._endings = self._endings or ServiceRate()
        endings.waits(now_s)
        if endings.wait_s(1, now_s) is None:
            return CONCURRENT_RETRY_S
        return endings.retry_after_s(0, now_s)

    def _window_reset_s(self, now_s: float, most: int, number: int = 1) -> int:
        """Return when the next ``number`` of requests is let in, if it is not now; else when the
        oldest no longer counts.

        After a limit was lowered, more may be in the window than it allows.
        """
        surplus = max(1, self._in_window - most + number)
        for tick, count in self._ticks:
            surplus -= count
            if surplus <= 0:
                return max(1, math.ceil((tick + _WINDOW_TICKS) / _TICKS_PER_S - now_s))
        return 0

    def _count(self, now_s: float, number: int = 1) -> None:
        tick = math.floor(now_s * _TICKS_PER_S)
        if self._ticks and self._ticks[-1][0] >= tick:
            self._ticks[-1] = (self._ticks[-1][0], self._ticks[-1][1] + number)
        else:
            self._ticks.append((tick, number))
        self._in_window += number

    def _advance_window(self, now_s: float) -> None:
        oldest = math.floor(now_s * _TICKS_PER_S) - _WINDOW_TICKS
        while self._ticks and self._ticks[0][0] <= oldest:
            self._in_window -= self._ticks.popleft()[1]


def _left_of_days(limit: str, most: int, used: int, days: tuple[int, int], unix_s: float) -> Left:
    """Return what is left of a limit that holds from the first of these days to the second."""
    begin, end = days
    reset_s = math.ceil(end * DAY_S - unix_s) if used else 0
    return Left(limit, most, max(0, most - used), reset_s, (end - begin) * DAY_S)
