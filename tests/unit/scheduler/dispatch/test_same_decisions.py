"""The ledger against its plain reference: the same calls, and the same answers to all of them.

Random walks with few agents, clients and kinds, so that ties, full buffers, displaced requests,
losses and rollouts happen all the time; and longer ones, in which chunks and heaps are cut.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_ledger import ReferenceLedger

from effort import examples
from paddler_trio.scheduler.dispatch import sorted_places
from paddler_trio.scheduler.dispatch.fair_order import Priority, RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.slot_ledger import SlotLedger
from paddler_trio.scheduler.dispatch.sorted_places import SortedPlaces
from paddler_trio.scheduler.dispatch.turn_costs import TurnCosts

KINDS = (None, "red", "blue")
OFFERS = (frozenset[str](), frozenset({"ours"}))


class Twins:
    """Both ledgers, a walk through their methods, and what they answered."""

    def __init__(
        self, seed: int, *, max_buffered: int, clients: int, most_agents: int, users: int
    ) -> None:
        self.dice = random.Random(seed)
        self.now_s = 0.0
        prompts = [self.dice.choice((0.0, 0.5, 3.0)) for _ in range(64)]
        plain, flat = (TurnCosts(lambda: self.now_s, lambda key: prompts[key % 64]) for _ in "ab")
        self.plain = ReferenceLedger(max_buffered, plain)
        self.flat = SlotLedger(max_buffered, costs=flat)
        self.clients = [f"c{number}" for number in range(clients)]
        self.users = ["", *(f"u{number}" for number in range(users))]
        self.most_agents = most_agents
        self.arrivals = self.joined = 0
        self.agents: list[AgentKey] = []
        self.requests: list[RequestKey] = []

    def step(self) -> None:
        self.now_s += self.dice.choice((0.0, 0.1, 4.0))
        moves = [self.arrive] * 6 + [self.end] * 4 + [self.report] * 2 + [self.join, self.lose]
        self.dice.choice([*moves, self.give_back])()
        self.compare()

    def both(self, method: str, *arguments: object, **options: object) -> object:
        plain = getattr(self.plain, method)(*arguments, **options)
        flat = getattr(self.flat, method)(*arguments, **options)
        assert flat == plain, f"{method}{arguments} {options}"
        return plain

    def arrive(self) -> None:
        self.arrivals += 1
        key = RequestKey(self.arrivals)
        decision = self.both(
            "ask",
            key,
            client=self.dice.choice(self.clients),
            user=self.dice.choice(self.users),
            priority=self.dice.choice(list(Priority)),
            needs=self.dice.choice(OFFERS),
            revision=self.dice.choice((None, None, None, "one", "two")),
        )
        displaced = getattr(decision, "displaced", None)
        if displaced is not None:
            self.requests.remove(displaced)
        if type(decision).__name__ != "BufferFull":
            self.requests.append(key)

    def end(self) -> None:
        if self.requests:
            key = self.requests.pop(self.dice.randrange(len(self.requests)))
            self.both("end", key)

    def give_back(self) -> None:
        holding = [key for key in self.requests if self.plain.position(key) is None]
        if holding:
            key = self.dice.choice(holding)
            self.both("give_back", key)
            self.ask_again(key)

    def ask_again(self, key: RequestKey) -> None:
        self.both(
            "ask_again",
            key,
            kind=self.dice.choice(KINDS),
            needs=self.dice.choice(OFFERS),
            revision=self.dice.choice((None, None, "one")),
        )

    def join(self) -> None:
        if len(self.agents) < self.most_agents:
            self.joined += 1
            self.agents.append(AgentKey(self.joined))
            self.both("join", self.agents[-1])

    def report(self) -> None:
        if self.agents:
            self.both(
                "update",
                self.dice.choice(self.agents),
                slots_total=self.dice.randint(-1, 4),
                accepting=self.dice.random() < 0.8,
                kind=self.dice.choice(KINDS),
                offers=self.dice.choice(OFFERS),
                revision=self.dice.choice((None, "one", "two")),
                next_revision=self.dice.choice((None, "one", "two")),
            )

    def lose(self) -> None:
        if self.agents and self.dice.random() < 0.5:
            agent = self.agents.pop(self.dice.randrange(len(self.agents)))
            lost = self.plain.leave(agent)
            assert self.flat.leave(agent) == lost
            assert self.flat.in_order(lost) == self.plain.in_order(lost)
            for key in lost:
                self.ask_again(key)

    def compare(self) -> None:
        self.both("statistics")
        self.both("stranded")
        for needs in OFFERS:
            self.both("is_hopeless", needs)
        for agent in self.agents:
            self.both("slots_processing", agent)
        for key in self.dice.sample(self.requests, min(5, len(self.requests))):
            self.both("position", key)


@pytest.mark.parametrize("users", [0, 3])
@pytest.mark.parametrize(
    ("max_buffered", "clients", "most_agents"), [(0, 1, 2), (4, 3, 3), (12, 4, 4), (30, 9, 6)]
)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(60), deadline=None)
def test_both_decide_the_same(
    max_buffered: int, clients: int, most_agents: int, users: int, seed: int
) -> None:
    twins = Twins(
        seed, max_buffered=max_buffered, clients=clients, most_agents=most_agents, users=users
    )
    for _ in range(120):
        twins.step()


@pytest.mark.thorough
@pytest.mark.parametrize(("clients", "users"), [(40, 0), (40, 5), (2, 30)])
def test_both_decide_the_same_with_many_of_everything(
    clients: int, users: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_places, "CHUNK", 4)
    twins = Twins(users, max_buffered=200, clients=clients, most_agents=20, users=users)
    for _ in range(800):
        twins.step()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=300))
@settings(max_examples=examples(100), deadline=None)
def test_sorted_places_are_a_sorted_list(moves: list[tuple[bool, int]]) -> None:
    places: SortedPlaces[tuple[int]] = SortedPlaces()
    expected: list[tuple[int]] = []
    before = sorted_places.CHUNK
    sorted_places.CHUNK = 3  # type: ignore[misc]
    try:
        for adds, number in moves:
            item = (number,)
            if adds and item not in expected:
                places.add(item)
                expected = sorted([*expected, item])
            elif item in expected:
                places.remove(item)
                expected.remove(item)
            else:
                with pytest.raises(ValueError, match="is not in"):
                    places.remove(item)
            assert list(places) == expected
            assert len(places) == len(expected)
            assert list(SortedPlaces.of(expected[::-1])) == expected
            assert [places.at(number) for number in range(len(expected))] == expected
            assert [places.before((each,)) for each in range(62)] == [
                sum(other < (each,) for other in expected) for each in range(62)
            ]
            if expected:
                assert (places.first, places.last) == (expected[0], expected[-1])
    finally:
        sorted_places.CHUNK = before  # type: ignore[misc]
