"""Turns between clients: nobody gets more than a share, nobody starves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.dispatch.fair_order import FairOrder, Place, Priority, RequestKey


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
