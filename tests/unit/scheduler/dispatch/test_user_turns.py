"""Users of one client share its turns, and take none from other clients."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from paddler_trio.scheduler.dispatch.fair_order import Priority, RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.slot_decisions import BufferFull, Granted, Queued
from paddler_trio.scheduler.dispatch.slot_ledger import SlotLedger

AGENT = AgentKey(1)


@attrs.define
class Queue:
    """One slot, which is taken; requests are named ``client/user`` and served one by one."""

    max_buffered: int = 1000
    ledger: SlotLedger = attrs.field(init=False)
    names: dict[RequestKey, str] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.ledger = SlotLedger(max_buffered=self.max_buffered)
        self.ledger.join(AGENT)
        self.ledger.update(AGENT, slots_total=1, accepting=True)
        self.add("nobody/")

    def add(self, name: str, priority: Priority = Priority.NORMAL) -> Granted | Queued | BufferFull:
        key = RequestKey(len(self.names))
        self.names[key] = name
        client, _, user = name.partition("/")
        return self.ledger.ask(key, client=client, user=user, priority=priority)

    def serve(self, count: int = 1000) -> list[str]:
        """The names of the next ones that get the slot, each after the one before has ended."""
        served: list[str] = []
        for _ in range(count):
            (holder,) = self.ledger._agents[AGENT].holders
            granted = self.ledger.end(holder)
            if not granted:
                break
            served.append(self.names[granted[0].request])
        return served


def test_a_user_with_few_requests_does_not_wait_for_one_with_many() -> None:
    queue = Queue()
    for _ in range(5):
        queue.add("shop/anna")
    queued = queue.add("shop/ben")
    assert isinstance(queued, Queued)
    assert queued.ahead == 1
    assert queue.ledger.position(RequestKey(2)) == 2  # anna's second stands behind him now
    assert queue.serve() == ["shop/anna", "shop/ben", *["shop/anna"] * 4]


def test_many_users_get_their_client_no_more_turns() -> None:
    queue = Queue()
    for number in range(20):
        queue.add(f"crowd/u{number}")
    for _ in range(5):
        queue.add("single/")
    first_ten = Counter(name.partition("/")[0] for name in queue.serve(10))
    assert first_ten == {"crowd": 5, "single": 5}
    assert len(queue.serve()) == 15


def test_requests_without_a_user_are_one_user() -> None:
    queue = Queue()
    for name in ("shop/", "shop/", "shop/", "shop/anna"):
        queue.add(name)
    assert queue.serve() == ["shop/", "shop/anna", "shop/", "shop/"]


def test_users_take_turns_within_a_class() -> None:
    queue = Queue()
    for name in ("shop/anna", "shop/anna", "shop/ben"):
        queue.add(name, Priority.LOW)
    queue.add("shop/carl", Priority.HIGH)
    assert queue.serve() == ["shop/carl", "shop/anna", "shop/ben", "shop/anna"]


def test_in_a_full_buffer_the_user_with_most_makes_room_for_another() -> None:
    queue = Queue(max_buffered=4)
    for _ in range(4):
        queue.add("shop/anna")
    decision = queue.add("shop/ben")
    assert isinstance(decision, Queued)
    assert (decision.displaced, decision.ahead) == (RequestKey(4), 1)
    assert isinstance(queue.add("shop/ben", Priority.LOW), BufferFull)
    decision = queue.add("shop/ben")
    assert isinstance(decision, Queued)
    assert decision.displaced == RequestKey(3)
    assert isinstance(queue.add("shop/ben"), BufferFull)  # each of them has two
    assert isinstance(queue.add("shop/anna"), BufferFull)
    assert queue.serve() == ["shop/anna", "shop/ben"] * 2


def test_who_gives_up_leaves_the_turns_to_the_others() -> None:
    queue = Queue()
    for name in ("shop/anna", "shop/anna", "shop/ben", "shop/carl"):
        queue.add(name)
    assert queue.ledger.end(RequestKey(3)) == []  # ben
    assert [queue.ledger.position(RequestKey(key)) for key in (1, 4, 2)] == [0, 1, 2]
    assert queue.serve() == ["shop/anna", "shop/carl", "shop/anna"]


def test_nothing_of_users_is_held_when_nothing_waits() -> None:
    queue = Queue()
    for number in range(3000):
        queue.max_buffered = 10_000
        queue.ledger.max_buffered = 10_000
        queue.add(f"shop/u{number % 1500}")
    clients = queue.ledger._queue._clients
    users = clients["shop"].users
    assert users is not None
    assert len(users._users) == 1500
    queue.serve(5000)
    assert clients == {}
    assert queue.ledger._queue._holders == {}


def test_a_request_that_lost_its_slot_comes_before_those_that_had_none() -> None:
    queue = Queue()
    for name in ("shop/anna", "shop/ben", "shop/ben"):
        queue.add(name)
    assert queue.serve(2) == ["shop/anna", "shop/ben"]
    (lost,) = queue.ledger.leave(AGENT)
    assert queue.names[lost] == "shop/ben"
    again = queue.ledger.ask_again(lost)
    assert isinstance(again, Queued)
    assert again.ahead == 0


@pytest.mark.parametrize("users", [1, 50])
def test_no_user_is_held_up_by_the_number_of_the_others(users: int) -> None:
    queue = Queue()
    for _ in range(4):
        for number in range(users):
            queue.add(f"shop/u{number}")
    queue.add("shop/late")
    assert queue.serve().index("shop/late") == users
