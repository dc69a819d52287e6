"""Requests go where their first token comes first, and nobody waits longer than a moment for it."""

from __future__ import annotations

from itertools import accumulate

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.slot_decisions import Granted, Queued
from paddler_trio.scheduler.dispatch.slot_ledger import SlotLedger
from paddler_trio.scheduler.dispatch.warm_placement import (
    MAX_HOLD_S,
    WORTH_TELLING,
    WarmPlacement,
)

A1, A2, A3 = AgentKey(1), AgentKey(2), AgentKey(3)
TOKENS = 64


@attrs.frozen
class Text:
    """A prompt with a block of 64 tokens for each character."""

    text: str

    @property
    def hashes(self) -> tuple[int, ...]:
        return tuple(hash(beginning) for beginning in accumulate(self.text))

    @property
    def size_bytes(self) -> int:
        return 4 * TOKENS * len(self.text)

    def covered_bytes(self, num_blocks: int) -> int:
        return 4 * TOKENS * num_blocks


class Fleet:
    """A ledger that places by prediction, in a time that a test moves."""

    def __init__(self, *slots: int, max_buffered: int = 100) -> None:
        self.now_s = 0.0
        self.placement = WarmPlacement(lambda: self.now_s)
        self.ledger = SlotLedger(max_buffered, self.placement)
        self.holders: dict[RequestKey, AgentKey] = {}
        self.holds: dict[RequestKey, float] = {}
        self.asked: dict[RequestKey, Text] = {}
        self.key = 0
        for number, total in enumerate(slots, 1):
            self.join(AgentKey(number), total)

    def join(self, agent: AgentKey, slots: int) -> None:
        self.ledger.join(agent)
        self.placement.joined(agent, f"a{agent}", "default")
        self.take(self.ledger.update(agent, slots_total=slots, accepting=True))

    def take(self, grants: list[Granted]) -> None:
        for granted in grants:
            self.holders[granted.request] = granted.agent
            self.holds.pop(granted.request, None)
        self.holds.update(self.ledger.holds.take_new())
        self.holds = {key: s for key, s in self.holds.items() if key in self.ledger.holds}

    def ask(self, text: str, deployment: str = "default") -> AgentKey | None:
        """Who has it; None if it waits."""
        self.key += 1
        key = RequestKey(self.key)
        self.asked[key] = Text(text)
        self.placement.arrived(key, self.asked[key], deployment)
        decision = self.ledger.ask(key)
        assert isinstance(decision, Granted | Queued)
        self.take([decision] if isinstance(decision, Granted) else [])
        return self.holders.get(key)

    def compute(self, key: int, *, cached: int = 0, tokens_per_s: float = 1000.0) -> None:
        request = RequestKey(key)
        tokens = TOKENS * len(self.asked[request].text)
        took_s = (tokens - cached) / tokens_per_s
        self.placement.computed(
            request, self.holders[request], tokens=tokens, cached=cached, took_s=took_s
        )

    def end(self, key: int) -> None:
        self.holders.pop(RequestKey(key), None)
        self.holds.pop(RequestKey(key), None)
        del self.asked[RequestKey(key)]
        self.take(self.ledger.end(RequestKey(key)))

    def pass_s(self, seconds: float) -> None:
        """Time passes, in which moments end."""
        self.now_s += seconds
        for key in [key for key, until_s in self.holds.items() if until_s <= self.now_s]:
            self.holds.pop(key, None)
            self.take(self.ledger.release_hold(key))


def served(fleet: Fleet, text: str) -> AgentKey:
    """Have a request answered at once; who did."""
    agent = fleet.ask(text)
    assert agent is not None
    fleet.compute(fleet.key)
    fleet.end(fleet.key)
    return agent


def test_the_next_turn_goes_where_the_turn_before_was() -> None:
    fleet = Fleet(2, 2, 2)
    homes = {text: served(fleet, text * 20) for text in "abc"}
    assert set(homes.values()) == {A1, A2, A3}
    for text in "cab":
        assert served(fleet, text * 20 + "more") == homes[text]


def test_what_nobody_has_goes_to_the_least_loaded() -> None:
    fleet = Fleet(2, 2)
    assert [fleet.ask(text * 20) for text in "abcd"] == [A1, A2, A1, A2]


def test_what_is_being_computed_counts() -> None:
    fleet = Fleet(4, 4)
    home = served(fleet, "a" * 4)
    fleet.ask("b" * 100)
    other = fleet.ask("c" * 100)
    assert home == A1
    assert other == A1, "each computes one of them"
    assert fleet.ask("a" * 4 + "d" * 90) == A2, "four blocks are worth less than the wait"


def test_a_slow_agent_gets_nothing_as_long_as_a_quick_one_is_quicker() -> None:
    fleet = Fleet(8, 8)
    for _ in range(2):
        agent = fleet.ask(f"{fleet.key}" * 20)
        fleet.compute(fleet.key, tokens_per_s=1000.0 if agent == A1 else 200.0)
        fleet.end(fleet.key)
    assert [fleet.ask(text * 20) for text in "xyz"] == [A1, A1, A1]


def test_an_agent_that_accepts_nothing_is_left_alone_however_warm() -> None:
    fleet = Fleet(2, 2)
    home = served(fleet, "a" * 50)
    fleet.take(fleet.ledger.update(home, slots_total=2, accepting=False))
    assert fleet.ask("a" * 50) not in (home, None)


def test_deployments_share_nothing() -> None:
    fleet = Fleet(2, 2)
    assert served(fleet, "a" * 50) == A1
    assert fleet.ask("a" * 50, deployment="other") == A2


def test_a_request_waits_a_moment_for_the_slot_where_its_prompt_is() -> None:
    fleet = Fleet(1, 1)
    home = served(fleet, "a" * 50)
    served(fleet, "b" * 50)
    fleet.pass_s(0.2)
    assert fleet.ask("a" * 50) == home
    busy = fleet.key
    fleet.compute(busy, cached=50 * TOKENS - 1)
    assert fleet.ask("a" * 50 + "next") is None, "the other one is free, and 3.2 s of work away"
    waits = RequestKey(fleet.key)
    assert 0 < fleet.holds[waits] - fleet.now_s <= MAX_HOLD_S
    assert fleet.ask("c" * 50) not in (home, None), "it is in nobody's way"
    fleet.end(busy)
    assert fleet.holders[waits] == home


def test_a_moment_has_an_end_and_comes_once() -> None:
    fleet = Fleet(1, 1)
    home = served(fleet, "a" * 50)
    served(fleet, "b" * 50)
    assert fleet.ask("a" * 50) == home
    fleet.compute(fleet.key, cached=50 * TOKENS - 1)
    assert fleet.ask("a" * 50) is None
    waits = RequestKey(fleet.key)
    fleet.pass_s(MAX_HOLD_S)
    assert fleet.holders[waits] not in (home, None)


def test_nobody_waits_for_an_agent_that_is_gone() -> None:
    fleet = Fleet(1, 1)
    home = served(fleet, "a" * 50)
    served(fleet, "b" * 50)
    assert fleet.ask("a" * 50) == home
    busy = fleet.key
    fleet.compute(busy, cached=50 * TOKENS - 1)
    assert fleet.ask("a" * 50) is None
    waits = RequestKey(fleet.key)
    fleet.ledger.leave(home)
    fleet.take(fleet.ledger.grant_waiting())
    assert fleet.holders[waits] not in (home, None)


def test_where_nothing_may_wait_nothing_waits_for_a_warm_slot() -> None:
    fleet = Fleet(1, 1, max_buffered=0)
    home = served(fleet, "a" * 50)
    served(fleet, "b" * 50)
    assert fleet.ask("a" * 50) == home
    assert fleet.ask("a" * 50) not in (home, None)


def test_a_hot_prefix_is_soon_everywhere() -> None:
    fleet = Fleet(4, 4, 4)
    homes = set[AgentKey | None]()
    for number in range(12):
        homes.add(fleet.ask("hot" * 10 + str(number)))
        fleet.pass_s(MAX_HOLD_S)
    assert homes >= {A1, A2, A3}


def test_an_agent_that_has_forgotten_is_believed() -> None:
    fleet = Fleet(9)
    for number in range(8):
        served(fleet, f"{number}" * 20)
    before = fleet.placement.index.num_blocks
    fleet.ask("0" * 20)
    fleet.compute(fleet.key, cached=0)
    assert fleet.placement.index.num_blocks < before
    assert fleet.placement.counts.missed["forgotten"] >= WORTH_TELLING


def test_an_answer_is_part_of_what_is_there() -> None:
    fleet = Fleet(2, 2)
    fleet.ask("a" * 10)
    fleet.compute(fleet.key)
    fleet.placement.answered(RequestKey(fleet.key), A1, 10 * TOKENS)
    fleet.end(fleet.key)
    fleet.ask("a" * 10 + "b" * 11)
    (missing,) = fleet.placement._agents[A1].missing.values()
    assert missing == TOKENS


class PlacementMachine(RuleBasedStateMachine):
    """Whatever happens, slots are kept within their numbers, and used but for a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(1, 2, 2, max_buffered=20)
        self.slots = {A1: 1, A2: 2, A3: 2}
        self.accepting = {A1, A2, A3}
        self.held_since: dict[RequestKey, float] = {}

    def note(self) -> None:
        for key in self.fleet.holds:
            assert key not in self.fleet.holders
            self.held_since.setdefault(key, self.fleet.now_s)

    @precondition(lambda self: len(self.fleet.asked) < 11)
    @rule(home=st.sampled_from("abc"), rest=st.text("xy", max_size=3))
    def a_request_arrives(self, home: str, rest: str) -> None:
        self.fleet.ask(home * 12 + rest)
        self.note()

    @precondition(lambda self: self.fleet.holders)
    @rule(data=st.data(), cached=st.integers(0, 12))
    def an_agent_reports(self, data: st.DataObject, cached: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.fleet.holders)))
        self.fleet.compute(key, cached=cached * TOKENS)

    @precondition(lambda self: self.fleet.asked)
    @rule(data=st.data())
    def a_request_ends(self, data: st.DataObject) -> None:
        self.fleet.end(data.draw(st.sampled_from(sorted(self.fleet.asked))))
        self.note()

    @rule(seconds=st.sampled_from([0.1, 1.0, MAX_HOLD_S]))
    def time_passes(self, seconds: float) -> None:
        self.fleet.pass_s(seconds)
        self.note()

    @rule(agent=st.sampled_from([A1, A2, A3]), accepting=st.booleans())
    def an_agent_changes(self, agent: AgentKey, accepting: bool) -> None:
        (self.accepting.add if accepting else self.accepting.discard)(agent)
        slots = self.slots[agent]
        self.fleet.take(self.fleet.ledger.update(agent, slots_total=slots, accepting=accepting))
        self.note()

    @rule(agent=st.sampled_from([A1, A2, A3]))
    def an_engine_starts_anew(self, agent: AgentKey) -> None:
        self.fleet.placement.restarted(agent)

    @invariant()
    def no_agent_has_more_than_its_slots(self) -> None:
        for agent, slots in self.slots.items():
            assert list(self.fleet.holders.values()).count(agent) <= slots

    @invariant()
    def a_slot_idles_only_while_those_that_wait_let_it_pass(self) -> None:
        free = [
            agent
            for agent in self.accepting
            if list(self.fleet.holders.values()).count(agent) < self.slots[agent]
        ]
        waiting = self.fleet.asked.keys() - self.fleet.holders.keys()
        if free:
            assert waiting == self.fleet.holds.keys()

    @invariant()
    def no_moment_is_longer_than_it_may_be(self) -> None:
        for key, until_s in self.fleet.holds.items():
            assert self.fleet.now_s < until_s <= self.held_since[key] + MAX_HOLD_S

    @invariant()
    def who_is_held_is_known_on_both_sides(self) -> None:
        placement = self.fleet.placement
        held = [each for each in placement._asked.values() if each.held_for is not None]
        assert len(held) == len(self.fleet.holds) == placement._num_held
        assert sum(each.num_held for each in placement._agents.values()) == len(held)

    def teardown(self) -> None:
        for key in sorted(self.fleet.asked):
            self.fleet.end(key)
        assert not self.fleet.placement._asked
        assert all(
            not each.missing and not each.since_s for each in self.fleet.placement._agents.values()
        )


TestPlacementMachine = PlacementMachine.TestCase
TestPlacementMachine.settings = settings(stateful_step_count=40, max_examples=60)
