"""Turns between clients: nobody gets more than a share, nobody starves.

Bugs were planted to see the machine object: corrections without the floor at the current turn,
refunds of turns that have passed or of all that is owed, a client's next request before its last
or before the current turn, charges that are not taken, a current turn that goes back. Each was
caught within the default number of examples, three times of three.
"""

from __future__ import annotations

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from effort import examples
from paddler_trio.scheduler.dispatch.fair_order import (
    MOST_AHEAD,
    FairOrder,
    Place,
    Priority,
    RequestKey,
)


class Queue:
    """A queue served one at a time, with nothing but the order under test."""

    def __init__(self) -> None:
        self.order = FairOrder()
        self.waiting: list[tuple[Place, str, Priority]] = []
        self.arrivals = 0

    def arrive(self, client: str, priority: Priority = Priority.NORMAL) -> RequestKey:
        self.arrivals += 1
        key = RequestKey(self.arrivals)
        place = self.order.place(key, client=client, priority=priority)
        self.waiting.append((place, client, priority))
        return key

    def serve(self) -> tuple[RequestKey, str]:
        self.waiting.sort(key=lambda entry: entry[0])
        place, client, priority = self.waiting.pop(0)
        self.order.granted(place, priority)
        return place[1], client


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=60))
def test_a_clients_own_requests_are_served_in_order_of_arrival(clients: list[str]) -> None:
    queue = Queue()
    mine: dict[str, list[RequestKey]] = {}
    for client in clients:
        mine.setdefault(client, []).append(queue.arrive(client))
    served: dict[str, list[RequestKey]] = {}
    for _ in clients:
        key, client = queue.serve()
        served.setdefault(client, []).append(key)
    assert served == mine


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(1, 30), min_size=2))
def test_clients_that_keep_waiting_take_turns(backlog: dict[str, int]) -> None:
    queue = Queue()
    for client, count in backlog.items():
        for _ in range(count):
            queue.arrive(client)
    got = dict.fromkeys(backlog, 0)
    for _ in range(sum(backlog.values())):
        _, client = queue.serve()
        got[client] += 1
        behind = [name for name in backlog if got[name] < backlog[name]]
        for name in behind:
            assert got[client] - got[name] <= 1, f"{client} got two turns while {name} waited"


@given(st.integers(1, 200), st.integers(0, 50))
def test_a_newcomer_is_not_behind_another_clients_backlog(backlog: int, served: int) -> None:
    queue = Queue()
    for _ in range(backlog):
        queue.arrive("greedy")
    for _ in range(min(served, backlog - 1)):
        queue.serve()
    mine = queue.arrive("modest")
    assert mine in (queue.serve()[0], queue.serve()[0])


def test_a_class_goes_before_the_next_but_not_for_ever() -> None:
    queue = Queue()
    low = queue.arrive("patient", Priority.LOW)
    overtaken = 0
    while True:
        queue.arrive("pushing", Priority.HIGH)
        if queue.serve()[0] == low:
            break
        overtaken += 1
    assert 0 < overtaken <= Priority.LOW.value + 1


@given(st.lists(st.sampled_from([*Priority]), min_size=2, max_size=40))
def test_within_one_turn_the_class_decides(priorities: list[Priority]) -> None:
    queue = Queue()
    for number, priority in enumerate(priorities):
        queue.arrive(f"client {number}", priority)
    order = [queue.waiting[0][2]]
    queue.waiting.sort(key=lambda entry: entry[0])
    order = [priority for _, _, priority in queue.waiting]
    assert order == sorted(priorities, key=lambda priority: priority.value)


def test_what_is_remembered_of_clients_is_bounded() -> None:
    queue = Queue()
    for number in range(5000):
        queue.arrive(f"client {number}")
        queue.serve()
    assert len(queue.order._clients) <= 2048


MOST = 8.0
TURNS = st.sampled_from((1 / 16, 0.5, 1.0, 3.0, 8.0))
CLIENTS = "abc"


@attrs.define(eq=False)
class Asked:
    """A request; ``turn``: the current one when it came, ``passed``: what others did since."""

    key: RequestKey
    client: str
    priority: Priority
    place: Place
    charge: float
    turn: float
    passed: dict[str, float] = attrs.field(factory=dict)

    @property
    def tag(self) -> float:
        return self.place[0] - self.priority.value


class WorkMachine(RuleBasedStateMachine):
    """Requests come, give up, get one of some slots in the order of their places, and end with
    other costs than they were charged."""

    def __init__(self) -> None:
        super().__init__()
        self.order = FairOrder()
        self.waiting: list[Asked] = []
        self.running: list[Asked] = []
        self.arrivals = 0

    @rule(
        client=st.sampled_from(CLIENTS),
        priority=st.sampled_from(Priority),
        charges=st.lists(TURNS, min_size=1, max_size=12),
    )
    def ask(self, client: str, priority: Priority, charges: list[float]) -> None:
        for charge in charges:
            self.ask_one(client, priority, charge)

    def ask_one(self, client: str, priority: Priority, charge: float) -> None:
        self.arrivals += 1
        key, turn = RequestKey(self.arrivals), self.order._turn
        owed = max(self.order._clients.get(client, (turn, turn)))
        place = self.order.place(key, client=client, priority=priority, charge=charge)
        asked = Asked(key, client, priority, place, charge, turn)
        assert asked.tag == max(turn, owed), "it stands elsewhere than its client has come"
        self.waiting.append(asked)

    @precondition(lambda self: self.waiting)
    @rule(times=st.integers(1, 12))
    def serve(self, times: int) -> None:
        for _ in range(min(times, len(self.waiting))):
            self.serve_first()

    def serve_first(self) -> None:
        first = min(self.waiting, key=lambda each: each.place)
        self.waiting.remove(first)
        self.running.append(first)
        turn = self.order._turn
        self.order.granted(first.place, first.priority)
        assert self.order._turn == max(turn, first.tag), "the current turn is another"
        for other in self.waiting:
            assert (other.client, other.priority) != (first.client, first.priority) or (
                first.key < other.key
            ), "a client's requests of one class were served out of order"
            if first.client != other.client and first.key > other.key:
                self.passes(first.client, other, first.charge)
                others = other.passed[first.client]
                assert others <= other.place[0] - other.turn + MOST, (
                    f"{first.client} has gone before {other.client} with {others} turns"
                )

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 1000), used=TURNS)
    def end(self, number: int, used: float) -> None:
        ended = self.running.pop(number % len(self.running))
        before = {each.key: each.place for each in self.waiting}
        self.order.correct(ended.client, used - ended.charge, self.last_turn(ended.client))
        assert before == {each.key: each.place for each in self.waiting}, "what waits was moved"
        end = self.order._clients.get(ended.client, (0.0, self.order._turn))[1]
        assert end >= self.order._turn, "a credit outlasts the turns that have passed"
        for other in self.waiting:
            if ended.client != other.client and used < ended.charge:
                self.passes(ended.client, other, used - ended.charge)

    @precondition(lambda self: self.waiting)
    @rule(number=st.integers(0, 1000))
    def give_up(self, number: int) -> None:
        left = self.waiting.pop(number % len(self.waiting))
        last = self.last_turn(left.client)
        before = self.order._clients.get(left.client)
        self.order.gave_up(left.client, left.tag, last, charge=left.charge)
        if before is not None:
            given_back = before[1] - self.order._clients[left.client][1]
            ahead = max(0.0, left.tag + left.charge - self.order._turn)
            assert given_back <= min(left.charge, ahead), "it got back turns that have passed"
            for other in self.waiting:
                if left.client != other.client:
                    self.passes(left.client, other, -given_back)

    def last_turn(self, client: str) -> float | None:
        return max((each.tag for each in self.waiting if each.client == client), default=None)

    @staticmethod
    def passes(client: str, other: Asked, turns: float) -> None:
        other.passed[client] = other.passed.get(client, 0.0) + turns

    @invariant()
    def nobody_stands_before_the_current_turn_or_behind_it_without_bound(self) -> None:
        turn = self.order._turn
        for client in CLIENTS:
            place = self.next_place(client)
            waits = sum(each.charge for each in self.waiting if each.client == client)
            runs = sum(each.charge for each in self.running if each.client == client)
            assert turn <= place, f"{client} has credit from before the current turn"
            assert place <= turn + MOST_AHEAD + waits + runs, f"{client} would wait for ever"

    @invariant()
    def a_newcomer_of_the_highest_class_stands_before_all_that_are_not_overdue(self) -> None:
        turn = self.order._turn
        for each in self.waiting:
            assert each.tag + each.priority.value >= turn, "a place is behind the current turn"

    def next_place(self, client: str) -> float:
        turn = self.order._turn
        return max(turn, *self.order._clients.get(client, (turn,)))


TestWork = WorkMachine.TestCase
TestWork.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.sampled_from(CLIENTS), st.integers(-(10**9), 10**9)), max_size=40))
def test_no_correction_gives_a_client_credit_or_sets_it_back_for_ever(
    corrections: list[tuple[str, int]],
) -> None:
    order = FairOrder()
    for number, (client, turns) in enumerate(corrections):
        order.correct(client, float(turns), None)
        tag = order.place(RequestKey(number), client=client, priority=Priority.HIGH)[0]
        assert order._turn <= tag <= order._turn + MOST_AHEAD + number
