"""Usage is counted whole for each key and model, whatever users are named."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from paddler_trio.scheduler.metering import usage
from paddler_trio.scheduler.metering.usage import UsageCount, UsageCounts, UsageKey

DAYS = st.integers(20_000, 20_003)
KEYS = st.sampled_from(["", "a", "b"])
MODELS = st.sampled_from(["m", "n"])
USERS = st.sampled_from(["", *(f"user {number}" for number in range(12))])


class Counts(RuleBasedStateMachine):
    """Requests of more users than are told apart end, over days that go forth and back; a write of
    them succeeds or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = UsageCounts()
        self.expected: Counter[tuple[int, str, str]] = Counter()
        self.stored: Counter[tuple[int, str, str]] = Counter()
        self.most = usage.MAX_USERS_OF_KEY, usage.MAX_USERS

    @initialize()
    def with_few_users(self) -> None:
        usage.MAX_USERS_OF_KEY, usage.MAX_USERS = 4, 9  # type: ignore[misc]

    def teardown(self) -> None:
        usage.MAX_USERS_OF_KEY, usage.MAX_USERS = self.most  # type: ignore[misc]

    @rule(day=DAYS, key=KEYS, user=USERS, model=MODELS, tokens=st.integers(0, 9))
    def request(self, day: int, key: str, user: str, model: str, tokens: int) -> None:
        count = UsageCount(requests=1, generated_tokens=tokens, last_s=day * 86_400)
        self.counts.add(UsageKey(day, key, user, model), count)
        self.expected[day, key, model] += tokens

    @rule(fails=st.booleans())
    def write(self, fails: bool) -> None:
        taken = self.counts.take()
        assert not self.counts.counts
        if fails:
            self.counts.include(taken)
            return
        for key, count in taken.items():
            self.stored[key.day, key.key, key.model] += count.generated_tokens

    @invariant()
    def nothing_is_lost_and_nothing_is_anothers(self) -> None:
        found = Counter(self.stored)
        for key, count in self.counts.counts.items():
            found[key.day, key.key, key.model] += count.generated_tokens
            assert count.last_s == key.day * 86_400
        assert +found == +self.expected

    @invariant()
    def users_that_are_told_apart_are_few(self) -> None:
        assert len(self.counts._users) <= 2
        for of_day in self.counts._users.values():
            assert all(len(users) <= 4 for users in of_day.values())
            assert sum(map(len, of_day.values())) <= 9


TestCounts = Counts.TestCase
