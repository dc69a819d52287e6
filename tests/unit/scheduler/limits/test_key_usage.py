"""The limits of one key against a plain account of everything that was let in."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paddler_trio.scheduler.limits.key_limits import NO_LIMITS, KeyLimits
from paddler_trio.scheduler.limits.key_usage import DAY_S, Exceeded, KeyUsage, Left

SOME = st.none() | st.integers(1, 4)
TICK_S = 0.1


class Key(RuleBasedStateMachine):
    """Requests come and go while time passes, days change, and limits are raised and lowered."""

    def __init__(self) -> None:
        super().__init__()
        self.usage = KeyUsage()
        self.limits = KeyLimits()
        self.now_s = 1000.0
        self.unix_s = 20_000.0 * DAY_S + 3600.0
        self.let_in: list[float] = []
        self.running = 0
        self.tokens = 0
        self.day = 20_000

    @rule(minute=SOME, at_once=SOME, day=st.none() | st.integers(1, 50))
    def change_limits(self, minute: int | None, at_once: int | None, day: int | None) -> None:
        self.limits = KeyLimits(minute, at_once, day)

    @rule(seconds=st.floats(0, 70) | st.sampled_from([0.0, 0.05, 59.9, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self._unix(self.unix_s + seconds)

    @rule(days=st.integers(-1, 2))
    def another_day(self, days: int) -> None:
        """Also a clock that is set back."""
        self._unix(self.unix_s + days * DAY_S)

    def _unix(self, unix_s: float) -> None:
        self.unix_s = unix_s
        if int(unix_s // DAY_S) != self.day:
            self.day, self.tokens = int(unix_s // DAY_S), 0

    def counted(self, window_s: float) -> int:
        return sum(self.now_s - began_s < window_s for began_s in self.let_in)

    @rule()
    def arrive(self) -> None:
        refused = self.usage.begin(self.limits, self.now_s, self.unix_s)
        minute, at_once, day = (
            self.limits.requests_per_minute,
            self.limits.max_concurrent,
            self.limits.tokens_per_day,
        )
        if refused is None:
            # never more in sixty seconds, to a tenth of a second
            assert minute is None or self.counted(60 - TICK_S) < minute
            assert at_once is None or self.running < at_once
            assert day is None or self.tokens < day
            self.let_in.append(self.now_s)
            self.running += 1
            return
        assert isinstance(refused, Exceeded)
        assert refused.retry_after_s >= 1
        match refused.limit:
            case "requests_per_minute":
                assert minute is not None
                assert self.counted(60 + TICK_S) >= minute
                assert refused.retry_after_s <= 60
                later_s = self.now_s + refused.retry_after_s
                assert sum(later_s - began_s < 60 - TICK_S for began_s in self.let_in) < minute
            case "max_concurrent":
                assert at_once is not None
                assert self.running >= at_once
            case "tokens_per_day":
                assert day is not None
                assert self.tokens >= day
                midnight_s = (self.day + 1) * DAY_S - self.unix_s
                assert midnight_s <= refused.retry_after_s < midnight_s + 1

    @precondition(lambda self: self.running > 0)
    @rule(tokens=st.integers(0, 20))
    def end(self, tokens: int) -> None:
        self.usage.end()
        self.running -= 1
        self.usage.charge(tokens, self.unix_s)
        self.tokens += tokens

    @invariant()
    def counts_are_those_of_the_account(self) -> None:
        last_minute = self.usage.requests_last_minute(self.now_s)
        assert self.counted(60 - TICK_S) <= last_minute <= self.counted(60 + TICK_S)
        assert self.usage.concurrent == self.running
        assert self.usage.tokens_today(self.unix_s) == self.tokens
        for left in self.usage.left(self.limits, self.now_s, self.unix_s):
            assert 0 <= left.left <= left.allowed
            assert left.reset_s is None or 0 <= left.reset_s <= DAY_S

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.usage._ticks) <= 600


TestKey = Key.TestCase


def test_a_key_without_limits_is_never_refused_and_is_counted_all_the_same() -> None:
    usage = KeyUsage()
    for number in range(5000):
        assert usage.begin(NO_LIMITS, number / 1000, 0.0) is None
    assert usage.requests_last_minute(5.0) == usage.concurrent == 5000
    assert usage.left(NO_LIMITS, 5.0, 0.0) == []


def test_so_many_more_at_once_wait_until_all_fit() -> None:
    usage, limits = KeyUsage(), KeyLimits(requests_per_minute=10)
    assert usage.begin(limits, 0.0, 0.0) is None
    assert usage.more(6, limits, 10.0) is None
    assert usage.begin(limits, 20.0, 0.0) is None
    assert usage.more(3, limits, 20.0) == Exceeded("requests_per_minute", 10, 40)
    assert usage.more(8, limits, 20.0) == Exceeded("requests_per_minute", 10, 50)
    assert usage.more(11, limits, 20.0) == Exceeded("requests_per_minute", 10, 61)
    assert usage.more(3, limits, 60.1) is None
    assert usage.requests_last_minute(60.1) == 10


def test_the_longest_wait_is_the_one_that_counts() -> None:
    usage = KeyUsage()
    limits = KeyLimits(requests_per_minute=1, max_concurrent=1, tokens_per_day=10)
    assert usage.begin(limits, 0.0, 0.0) is None
    usage.charge(10, 0.0)
    assert usage.begin(limits, 0.0, 0.0) == Exceeded("tokens_per_day", 10, DAY_S)
    assert usage.begin(limits, 0.0, float(DAY_S)) == Exceeded("requests_per_minute", 1, 60)
    assert usage.begin(limits, 60.0, float(DAY_S)) == Exceeded("max_concurrent", 1, 1)
    usage.end()
    assert usage.left(limits, 60.0, float(DAY_S)) == [
        Left("requests_per_minute", 1, 1, 0),
        Left("max_concurrent", 1, 1, None),
        Left("tokens_per_day", 10, 10, 0),
    ]


def test_what_is_refused_does_not_count() -> None:
    usage, limits = KeyUsage(), KeyLimits(requests_per_minute=1)
    assert usage.begin(limits, 0.0, 0.0) is None
    for second in range(1, 60):
        assert usage.begin(limits, float(second), 0.0) == Exceeded(
            "requests_per_minute", 1, 60 - second
        )
    assert usage.begin(limits, 60.0, 0.0) is None
