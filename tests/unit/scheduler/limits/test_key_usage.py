"""The limits of one key against a plain account of everything that was let in."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paddler_trio.scheduler.limits.key_limits import NO_LIMITS, KeyLimits
from paddler_trio.scheduler.limits.key_usage import Exceeded, KeyUsage, Left
from paddler_trio.scheduler.limits.periods import (
    DAY_S,
    day_from,
    day_of,
    day_text,
    first_day,
    month_from,
    month_of,
    month_text,
)

SOME = st.none() | st.integers(1, 4)
BUDGET = st.none() | st.integers(1, 50)
TICK_S = 0.1


class Spent:
    """What was spent in a period, and in the one that was left last, to which a clock may go back;
    periods are told apart by how the calendar writes them."""

    def __init__(self, written: str, unix_s: float) -> None:
        self.written, self.tokens = written, 0
        self.period = datetime.fromtimestamp(unix_s, UTC).strftime(written)
        self.before = ("", 0)

    def go_to(self, unix_s: float) -> None:
        period = datetime.fromtimestamp(unix_s, UTC).strftime(self.written)
        if period != self.period:
            found = self.before[1] if self.before[0] == period else 0
            self.before = self.period, self.tokens
            self.period, self.tokens = period, found


class Key(RuleBasedStateMachine):
    """Requests come and go while time passes, days change, and limits are raised and lowered."""

    def __init__(self) -> None:
        super().__init__()
        self.usage = KeyUsage()
        self.limits = KeyLimits()
        self.now_s = 1000.0
        self.unix_s = datetime(2024, 2, 28, 23, 0, tzinfo=UTC).timestamp()
        self.let_in: list[float] = []
        self.running = 0
        self.days = Spent("%Y-%m-%d", self.unix_s)
        self.months = Spent("%Y-%m", self.unix_s)

    @rule(minute=SOME, at_once=SOME, day=BUDGET, month=BUDGET)
    def change_limits(
        self, minute: int | None, at_once: int | None, day: int | None, month: int | None
    ) -> None:
        self.limits = KeyLimits(minute, at_once, day, month)

    @rule(seconds=st.floats(0, 70) | st.sampled_from([0.0, 0.05, 59.9, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self._unix(self.unix_s + seconds)

    @rule(days=st.integers(-2, 3))
    def another_day(self, days: int) -> None:
        """Also a clock that is set back."""
        self._unix(self.unix_s + days * DAY_S)

    def _unix(self, unix_s: float) -> None:
        self.unix_s = unix_s
        # what is asked once a look is counted, as a balancer does for each request
        self.usage.left(self.limits, self.now_s, unix_s)
        self.usage.tokens_today(unix_s)
        self.usage.tokens_this_month(unix_s)
        self.days.go_to(unix_s)
        self.months.go_to(unix_s)

    def counted(self, window_s: float) -> int:
        return sum(self.now_s - began_s < window_s for began_s in self.let_in)

    @rule()
    def arrive(self) -> None:
        refused = self.usage.begin(self.limits, self.now_s, self.unix_s)
        minute, at_once, day, month = (
            self.limits.requests_per_minute,
            self.limits.max_concurrent,
            self.limits.tokens_per_day,
            self.limits.tokens_per_month,
        )
        if refused is None:
            # never more in sixty seconds, to a tenth of a second
            assert minute is None or self.counted(60 - TICK_S) < minute
            assert at_once is None or self.running < at_once
            assert day is None or self.days.tokens < day
            assert month is None or self.months.tokens < month
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
                assert self.days.tokens >= day
                midnight_s = (self.unix_s // DAY_S + 1) * DAY_S - self.unix_s
                assert midnight_s <= refused.retry_after_s < midnight_s + 1
            case "tokens_per_month":
                assert month is not None
                assert self.months.tokens >= month
                before = datetime.fromtimestamp(self.unix_s + refused.retry_after_s - 1.5, UTC)
                opens = datetime.fromtimestamp(self.unix_s + refused.retry_after_s, UTC)
                now = datetime.fromtimestamp(self.unix_s, UTC)
                assert (before.month, opens.month) == (now.month, now.month % 12 + 1)

    @precondition(lambda self: self.running > 0)
    @rule(tokens=st.integers(0, 20))
    def end(self, tokens: int) -> None:
        self.usage.end(self.now_s)
        self.running -= 1
        self.usage.charge(tokens, self.unix_s)
        self.days.tokens += tokens
        self.months.tokens += tokens

    @invariant()
    def counts_are_those_of_the_account(self) -> None:
        last_minute = self.usage.requests_last_minute(self.now_s)
        assert self.counted(60 - TICK_S) <= last_minute <= self.counted(60 + TICK_S)
        assert self.usage.concurrent == self.running
        assert self.usage.tokens_today(self.unix_s) == self.days.tokens
        assert self.usage.tokens_this_month(self.unix_s) == self.months.tokens
        for left in self.usage.left(self.limits, self.now_s, self.unix_s):
            assert 0 <= left.left <= left.allowed
            assert left.reset_s is None or 0 <= left.reset_s <= 31 * DAY_S

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
    usage.end(62.0)
    assert usage.left(limits, 60.0, float(DAY_S)) == [
        Left("requests_per_minute", 1, 1, 0, 60),
        Left("max_concurrent", 1, 1, None),
        Left("tokens_per_day", 10, 10, 0, DAY_S),
    ]


def test_what_is_refused_does_not_count() -> None:
    usage, limits = KeyUsage(), KeyLimits(requests_per_minute=1)
    assert usage.begin(limits, 0.0, 0.0) is None
    for second in range(1, 60):
        assert usage.begin(limits, float(second), 0.0) == Exceeded(
            "requests_per_minute", 1, 60 - second
        )
    assert usage.begin(limits, 60.0, 0.0) is None


def test_a_clock_that_is_put_right_gives_no_budget_twice() -> None:
    usage, limits = KeyUsage(), KeyLimits(tokens_per_day=10, tokens_per_month=15)
    evening_s = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC).timestamp()
    usage.charge(10, evening_s)
    assert usage.begin(limits, 0.0, evening_s) == Exceeded("tokens_per_day", 10, 1)
    usage.charge(9, evening_s + 2)  # December, by a clock that goes two seconds ahead
    assert usage.begin(limits, 0.0, evening_s) == Exceeded("tokens_per_day", 10, 1)
    usage.charge(6, evening_s + 1)
    assert usage.tokens_today(evening_s + 1) == usage.tokens_this_month(evening_s + 1) == 15
    month_s = 31 * DAY_S
    assert usage.begin(limits, 0.0, evening_s + 1) == Exceeded("tokens_per_month", 15, month_s)
    assert usage.begin(limits, 0.0, evening_s + 1 + month_s) is None


def test_periods_are_read_as_they_are_written() -> None:
    for text in ("1970-01-01", "2024-02-29", "2026-12-31", "9998-12-31"):
        day = day_from(text)
        assert day is not None
        assert day_text(day) == text
        assert month_text(month_of(day)) == text[:7]
        assert first_day(month_of(day)) <= day < first_day(month_of(day) + 1)
        assert month_from(text[:7]) == month_of(day)
    for text in ("2026-2-1", "2026-02-30", "1969-12-31", "2026-13-01", "", "x", "2026-11-29T00"):
        assert day_from(text) is None
    assert month_from("2026-13") is month_from("2026-1") is None
    assert day_of(-5.0) == 0
    assert day_of(1e30) == day_of(1e300)


def test_who_is_refused_for_those_that_run_comes_again_when_one_has_likely_ended() -> None:
    usage, limits, now_s = KeyUsage(), KeyLimits(max_concurrent=1), 100.0
    for expected_s in (1, 8, 8, 8):
        assert usage.begin(limits, now_s, 0.0) is None
        assert usage.begin(limits, now_s, 0.0) == Exceeded("max_concurrent", 1, expected_s)
        usage.end(now_s + 8.0)
        now_s += 20.0
    assert usage.begin(limits, now_s, 0.0) is None
    assert usage.begin(limits, now_s, 0.0) is not None
    exceeded = usage.begin(limits, now_s + 100.0, 0.0)
    assert exceeded is not None
    assert exceeded.retry_after_s > 8, "it takes longer than ever"
