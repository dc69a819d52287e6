"""The slot ledger as a random walk against invariants in words.

Five bugs were planted to see this object: granting without looking at ``accepting`` (two slots of
a refusing agent taken), forgetting to settle in ``end`` (a slot idles while somebody waits), and
appending in ``ask_again`` instead of inserting (a re-queued request loses its place), not looking
at what an agent offers, and letting a request that needs something block those behind it. Each was
caught within the default number of examples.
"""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from effort import examples
from paddler_trio.scheduler.dispatch.fair_order import Priority, RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.slot_decisions import BufferFull, Granted, Queued
from paddler_trio.scheduler.dispatch.slot_ledger import SlotLedger

LIMIT = 4
KINDS = ("red", "blue")
OFFERS = (frozenset(), frozenset({"ours"}), frozenset({"ours", "eyes"}))
NOTHING: frozenset[str] = frozenset()


class LedgerMachine(RuleBasedStateMachine):
    """Keeps its own plain books beside the ledger's and compares."""

    requests = Bundle("requests")
    agents = Bundle("agents")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = SlotLedger(max_buffered=LIMIT)
        self.arrivals = 0
        self.joined = 0
        self.holding: dict[RequestKey, AgentKey] = {}
        self.waiting: dict[RequestKey, str | None] = {}
        self.newcomers: dict[RequestKey, tuple[str, Priority]] = {}
        """Client and class of all that never had a slot."""
        self.needs: dict[RequestKey, frozenset[str]] = {}
        self.agents_now: dict[AgentKey, tuple[int, bool, str]] = {}
        self.offers: dict[AgentKey, frozenset[str]] = {}

    def _obey(self, grants: list[Granted]) -> None:
        for grant in grants:
            slots, accepting, kind = self.agents_now[grant.agent]
            assert accepting, "a slot of an agent that takes no work was granted"
            held = sum(agent == grant.agent for agent in self.holding.values())
            assert held < slots, "an agent was oversubscribed"
            wanted = self.waiting.pop(grant.request)
            self.newcomers.pop(grant.request, None)
            assert wanted in (None, kind), "a continuation went to another model"
            assert self.needs[grant.request] <= self.offers[grant.agent], (
                "a request went to an agent that cannot do it"
            )
            self.holding[grant.request] = grant.agent

    @rule(
        target=requests,
        priority=st.sampled_from(Priority),
        client=st.sampled_from("abc"),
        needs=st.sampled_from(OFFERS),
    )
    def arrive(self, priority: Priority, client: str, needs: frozenset[str]) -> object:
        self.arrivals += 1
        request = RequestKey(self.arrivals)
        before = len(self.waiting)
        crowded = self._clients_with_two_more_than(client, priority)
        decision = self.ledger.ask(request, client=client, priority=priority, needs=needs)
        self.needs[request] = needs
        match decision:
            case BufferFull():
                assert before >= LIMIT, "turned away though there was room"
                assert not crowded, f"{crowded} fill the buffer and keep {client} out"
                return multiple()
            case Granted():
                self.waiting[request] = None
                self._obey([decision])
            case Queued(displaced=None):
                assert before < LIMIT, "a newcomer was let in over the limit"
                self.waiting[request] = None
                self.newcomers[request] = (client, priority)
            case Queued(displaced=int(displaced)):
                assert before >= LIMIT, "a request was displaced though there was room"
                other, _ = self.newcomers[RequestKey(displaced)]
                assert other in crowded, f"{other} has no more than {client}"
                del self.waiting[RequestKey(displaced)], self.newcomers[RequestKey(displaced)]
                self.waiting[request] = None
                self.newcomers[request] = (client, priority)
        return request

    def _clients_with_two_more_than(self, client: str, priority: Priority) -> set[str]:
        """Whose last request could make room for one of ``client`` and ``priority``."""
        waiting: dict[str, list[tuple[int, Priority]]] = {}
        for request, (owner, its_class) in self.newcomers.items():
            place = self.ledger.position(request)
            assert place is not None
            waiting.setdefault(owner, []).append((place, its_class))
        own = len(waiting.get(client, ()))
        return {
            owner
            for owner, places in waiting.items()
            if len(places) >= own + 2 and max(places, key=lambda p: p[0])[1].value >= priority.value
        }

    @rule(request=consumes(requests))
    def end(self, request: RequestKey) -> None:
        self.holding.pop(request, None)
        self.waiting.pop(request, None)
        self.newcomers.pop(request, None)
        self._obey(self.ledger.end(request))
        assert self.ledger.end(request) == [], "ending twice did something"

    @rule(
        target=agents,
        slots=st.integers(0, 3),
        kind=st.sampled_from(KINDS),
        offers=st.sampled_from(OFFERS),
    )
    def join(self, slots: int, kind: str, offers: frozenset[str]) -> AgentKey:
        self.joined += 1
        agent = AgentKey(self.joined)
        self.ledger.join(agent)
        self.agents_now[agent] = (slots, True, kind)
        self.offers[agent] = offers
        self._obey(self._update(agent, slots))
        return agent

    def _update(self, agent: AgentKey, slots: int) -> list[Granted]:
        _, accepting, kind = self.agents_now[agent]
        return self.ledger.update(
            agent, slots_total=slots, accepting=accepting, kind=kind, offers=self.offers[agent]
        )

    @rule(agent=agents, slots=st.integers(-1, 4), accepting=st.booleans())
    def report(self, agent: AgentKey, slots: int, accepting: bool) -> None:
        if agent in self.agents_now:
            kind = self.agents_now[agent][2]
            self.agents_now[agent] = (max(0, slots), accepting, kind)
            self._obey(self._update(agent, slots))

    @rule(agent=consumes(agents), continues=st.booleans())
    def lose(self, agent: AgentKey, continues: bool) -> None:
        if agent not in self.agents_now:
            return
        kind = self.agents_now.pop(agent)[2]
        lost = self.ledger.leave(agent)
        assert lost == [key for key, holder in self.holding.items() if holder == agent], (
            "leases do not end in the order they were granted"
        )
        for request in lost:
            del self.holding[request]
        for request in lost:
            needs = kind if continues else None
            self.waiting[request] = needs
            decision = self.ledger.ask_again(request, kind=needs)
            if isinstance(decision, Granted):
                self._obey([decision])

    @invariant()
    def the_books_agree(self) -> None:
        statistics = self.ledger.statistics()
        assert statistics.slots_processing == len(self.holding)
        assert statistics.requests_buffered == len(self.waiting)
        assert statistics.slots_total == sum(slots for slots, _, _ in self.agents_now.values())
        for agent in self.agents_now:
            held = sum(holder == agent for holder in self.holding.values())
            assert self.ledger.slots_processing(agent) == held

    @invariant()
    def no_slot_idles_while_a_request_waits_that_may_have_it(self) -> None:
        for agent, (slots, accepting, kind) in self.agents_now.items():
            held = sum(holder == agent for holder in self.holding.values())
            if accepting and held < slots:
                assert not any(
                    wanted in (None, kind) and self.needs[request] <= self.offers[agent]
                    for request, wanted in self.waiting.items()
                )

    @invariant()
    def everyone_who_waits_has_a_position_of_their_own(self) -> None:
        positions = sorted(self.ledger.position(request) or 0 for request in self.waiting)
        assert positions == list(range(len(self.waiting)))
        assert all(self.ledger.position(request) is None for request in self.holding)

    @invariant()
    def stranded_are_those_whose_kind_no_agent_here_is_or_may_become(self) -> None:
        expected = {
            request
            for request, needs in self.waiting.items()
            if needs is not None
            and not any(
                kind == needs or (kind is None and self.offers[agent])
                for agent, (_, _, kind) in self.agents_now.items()
            )
        }
        assert set(self.ledger.stranded()) == expected

    @invariant()
    def hopeless_is_what_nobody_here_offers(self) -> None:
        for needs in OFFERS:
            offered = any(needs <= self.offers[agent] for agent in self.agents_now)
            assert self.ledger.is_hopeless(needs) == (bool(self.agents_now) and not offered)
        assert not self.ledger.is_hopeless(NOTHING)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)


def test_one_client_of_one_class_is_served_in_order_of_arrival() -> None:
    ledger = SlotLedger(max_buffered=100)
    agent = AgentKey(1)
    for number in range(1, 21):
        ledger.ask(RequestKey(number))
    ledger.join(agent)
    order = [grant.request for grant in ledger.update(agent, slots_total=1, accepting=True)]
    while len(order) < 20:
        order += [grant.request for grant in ledger.end(order[-1])]
    assert order == sorted(order)


def test_a_request_that_lost_its_agent_has_its_old_place_again() -> None:
    ledger = SlotLedger(max_buffered=100)
    agent = AgentKey(1)
    ledger.join(agent)
    ledger.update(agent, slots_total=1, accepting=True)
    assert isinstance(ledger.ask(RequestKey(1)), Granted)
    assert ledger.ask(RequestKey(2)) == Queued(RequestKey(2), 0)
    assert ledger.leave(agent) == [RequestKey(1)]
    assert ledger.ask_again(RequestKey(1)) == Queued(RequestKey(1), 0)
    assert ledger.position(RequestKey(2)) == 1


def test_a_request_that_is_turned_away_costs_its_client_no_turn() -> None:
    ledger = SlotLedger(max_buffered=2)
    assert ledger.ask(RequestKey(1), client="a") == Queued(RequestKey(1), 0)
    assert ledger.ask(RequestKey(2), client="b") == Queued(RequestKey(2), 1)
    for number in range(3, 9):
        assert isinstance(ledger.ask(RequestKey(number), client="b"), BufferFull)
    ledger.end(RequestKey(1))
    assert ledger.ask(RequestKey(9), client="b") == Queued(RequestKey(9), 1)
    ledger.end(RequestKey(2))
    assert ledger.ask(RequestKey(10), client="a") == Queued(RequestKey(10), 0)


@given(st.lists(st.booleans(), max_size=60))
def test_a_request_that_gave_up_waiting_costs_its_client_no_turn(gives_up: list[bool]) -> None:
    ledger = SlotLedger(max_buffered=100)
    agent, numbers = AgentKey(1), count(1)
    waiting = []
    for leaves in gives_up:  # nobody serves: these wait, or time out
        request = RequestKey(next(numbers))
        ledger.ask(request, client="patient")
        if leaves:
            ledger.end(request)
        else:
            waiting.append(request)
    ledger.ask(last := RequestKey(next(numbers)), client="patient")
    ledger.ask(RequestKey(next(numbers)), client="new")
    ledger.join(agent)
    (grant,) = ledger.update(agent, slots_total=1, accepting=True)
    order = [grant.request]
    while order[-1] != last:
        ledger.ask(RequestKey(next(numbers)), client="new")
        order += [grant.request for grant in ledger.end(order[-1])]
    assert [request for request in order if request in waiting] == waiting, "its own order changed"
    assert len(order) <= 2 * len(waiting) + 3, "it stood back for requests that never ran"


def test_lost_requests_are_sorted_by_their_places_not_by_their_grants() -> None:
    ledger = SlotLedger(max_buffered=100)
    first, second = AgentKey(1), AgentKey(2)
    for agent in (first, second):
        ledger.join(agent)
        ledger.update(agent, slots_total=1, accepting=True)
        ledger.ask(RequestKey(int(agent)))
    ledger.update(second, slots_total=2, accepting=True)
    assert ledger.leave(first) == [RequestKey(1)]
    assert ledger.ask_again(RequestKey(1)) == Granted(RequestKey(1), second)
    lost = ledger.leave(second)
    assert lost == [RequestKey(2), RequestKey(1)]
    assert ledger.in_order(lost) == [RequestKey(1), RequestKey(2)]


def test_who_needs_what_no_free_agent_offers_lets_others_pass_and_keeps_its_place() -> None:
    ledger = SlotLedger(max_buffered=100)
    plain, able = AgentKey(1), AgentKey(2)
    for agent in (plain, able):
        ledger.join(agent)
    ledger.update(plain, slots_total=1, accepting=True)
    needs = frozenset({"ours"})
    assert ledger.ask(RequestKey(1), needs=needs) == Queued(RequestKey(1), 0)
    assert ledger.ask(RequestKey(2)) == Granted(RequestKey(2), plain)
    assert ledger.ask(RequestKey(3)) == Queued(RequestKey(3), 1)
    grants = ledger.update(able, slots_total=1, accepting=True, offers=needs)
    assert grants == [Granted(RequestKey(1), able)]
    assert ledger.end(RequestKey(2)) == [Granted(RequestKey(3), plain)]


def test_a_client_that_fills_the_buffer_makes_room_for_others_from_its_end() -> None:
    ledger = SlotLedger(max_buffered=4)
    for number in range(1, 5):
        ledger.ask(RequestKey(number), client="many")
    assert ledger.ask(RequestKey(5), client="few") == Queued(RequestKey(5), 1, RequestKey(4))
    assert ledger.ask(RequestKey(6), client="few") == Queued(RequestKey(6), 3, RequestKey(3))
    for number, client in enumerate(("few", "many"), start=7):
        assert isinstance(ledger.ask(RequestKey(number), client=client), BufferFull)


def test_a_request_that_lost_its_agent_makes_room_for_nobody() -> None:
    ledger = SlotLedger(max_buffered=2)
    agent = AgentKey(1)
    ledger.join(agent)
    ledger.update(agent, slots_total=2, accepting=True)
    for number in (1, 2):
        ledger.ask(RequestKey(number), client="many")
    for request in ledger.leave(agent):
        ledger.ask_again(request)
    assert isinstance(ledger.ask(RequestKey(3), client="few"), BufferFull)


def test_a_request_of_a_lower_class_displaces_none_of_a_higher() -> None:
    ledger = SlotLedger(max_buffered=2)
    for number in (1, 2):
        ledger.ask(RequestKey(number), client="many", priority=Priority.HIGH)
    assert isinstance(ledger.ask(RequestKey(3), client="few"), BufferFull)
    assert ledger.ask(RequestKey(4), client="few", priority=Priority.HIGH) == Queued(
        RequestKey(4), 1, RequestKey(2)
    )
