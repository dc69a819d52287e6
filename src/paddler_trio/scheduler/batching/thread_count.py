"""Decide how many threads compute a pass: fewer of them while other programs keep cores busy.

The threads of a pass wait for each other hundreds of times in it. Where one of them has to share
its core, all wait for it each time: a pass of as many threads as cores, beside one busy program,
takes several times what it takes with one thread fewer. How much of a pass its first thread ran
tells whether that is so.
"""

from __future__ import annotations

import math

import attrs

_WINDOW_S = 0.03
_WINDOW_PASSES = 3
_WINDOW_SLOW = 2
"""Judged are passes of so long in all, and so many. Of these so many must be slow: a single one may
have met anything."""
_LONG_S = 0.1
"""One that is slow for so long says enough by itself: it met many turns of the scheduler."""
_MOST_SHARE = 0.7
"""A pass with many threads, too, loses a tenth to event loops on the same cores."""
_FIRST_PATIENCE_S = 0.5
_HELD_S = 0.5
"""A try is won when passes are fast for so long: a busy program leaves some of them alone."""
_LONGEST_PATIENCE_S = 16.0
_LEAST_LIMIT_S = 0.05
_LIMIT_TIMES = 4.0
"""What threads wait for each other beside a busy program makes a pass of 3 ms one of 400."""


def _least_share(threads: int) -> float:
    """The part of a pass that its first thread runs, below which one thread fewer is faster.

    Where ``1/n`` of it is lost, passes of one thread fewer take as long. A tenth less may be lost
    here, because what a thread spins while it waits counts as running.
    """
    return min(_MOST_SHARE, 1.0 - 0.9 / threads)


@attrs.define
class ThreadCount:
    """Starts with ``most``, gives way down to ``least``, and comes back.

    Whether cores are free again shows only by trying, one thread at a time. A try in vain costs
    some slow passes, so the next one comes twice as late as the last, 16 s after it at most.
    """

    most: int
    least: int = 1
    now: int = attrs.field(init=False)
    _wall_s: float = attrs.field(default=0.0, init=False)
    _ran_s: float = attrs.field(default=0.0, init=False)
    _passes: int = attrs.field(default=0, init=False)
    _slow: int = attrs.field(default=0, init=False)
    _slow_s: float = attrs.field(default=0.0, init=False)
    _paged_in: int = attrs.field(default=0, init=False)
    _patience_s: float = attrs.field(default=_FIRST_PATIENCE_S, init=False)
    _try_s: float = attrs.field(default=math.inf, init=False)
    """The time at which one more is tried."""
    _is_trying: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.now = self.most

    def passed(self, wall_s: float, ran_s: float, *, paged_in: int, now_s: float) -> bool:
        """Note that a pass was computed by ``now`` threads; return whether their number changes.

        Args:
          wall_s: how long it took.
          ran_s: how long its first thread ran of that.
          paged_in: pages that the process had to wait for so far. Passes with such a wait say
            nothing: the disk, not a program, kept them waiting.

        Returns:
          Whether ``now`` is another number from here on.
        """
        if self.most == self.least:
            return False
        if paged_in != self._paged_in:
            self._paged_in = paged_in
            self._forget()
            return False
        least_share = _least_share(self.now)
        self._wall_s += wall_s
        self._ran_s += ran_s
        self._passes += 1
        if ran_s < wall_s * least_share:
            self._slow += 1
            self._slow_s += wall_s
        is_long = self._slow_s >= _LONG_S
        is_enough = is_long or self._slow >= _WINDOW_SLOW
        is_lost = is_long or (self._is_trying and is_enough)
        if (self._wall_s < _WINDOW_S or self._passes < _WINDOW_PASSES) and not is_lost:
            return False
        before = self.now
        is_slow = is_enough and self._ran_s < self._wall_s * least_share
        if is_slow and self.now > self.least:
            self._give_way(now_s, max(1, self.now // 4))
        else:
            self._go_on(now_s)
        self._forget()
        return self.now != before

    def limit_s(self, expected_s: float | None) -> float:
        """Return how long a pass may take that should take ``expected_s``; inf for as long as it
        likes. A longer one is worth breaking off: fewer threads are sooner done with it."""
        if expected_s is None or self.now == self.least:
            return math.inf
        return max(_LEAST_LIMIT_S, _LIMIT_TIMES * expected_s)

    def broken_off(self, now_s: float) -> None:
        """Note that a pass took longer than its limit and is computed anew, by fewer threads: half
        of them, for each time is a pause for all streams."""
        if self.now > self.least:
            self._give_way(now_s, max(1, self.now // 2))
        self._forget()

    def _forget(self) -> None:
        self._wall_s = self._ran_s = self._slow_s = 0.0
        self._passes = self._slow = 0

    def _give_way(self, now_s: float, count: int) -> None:
        """Take away so many threads, or the one that was tried."""
        if self._is_trying:
            self._is_trying = False
            self.now -= 1
            self._patience_s = min(_LONGEST_PATIENCE_S, 2 * self._patience_s)
        else:
            self.now = max(self.least, self.now - count)
            if now_s - self._try_s > _LONGEST_PATIENCE_S:  # what kept cores busy then is long gone
                self._patience_s = _FIRST_PATIENCE_S
        self._try_s = now_s + self._patience_s

    def _go_on(self, now_s: float) -> None:
        if self._is_trying:
            if now_s < self._try_s + _HELD_S:
                return
            self._is_trying = False
            self._patience_s = max(_FIRST_PATIENCE_S, self._patience_s / 2)
        if self.now < self.most and now_s >= self._try_s:
            self._is_trying = True
            self._try_s = now_s
            self.now += 1
