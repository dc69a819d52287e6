"""What requests cost: nothing that a client says, at least a little and never too much."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.slot_decisions import Granted
from paddler_trio.scheduler.dispatch.slot_ledger import SlotLedger
from paddler_trio.scheduler.dispatch.turn_costs import (
    LEAST_S,
    LEAST_TURNS,
    MOST_TURNS,
    TurnCosts,
)

AGENT = AgentKey(1)


@attrs.define
class Slots:
    """An agent, a time that a test moves, and requests named ``client/user``."""

    slots: int = 1
    now_s: float = 0.0
    prompt_s: float = 0.0
    ledger: SlotLedger = attrs.field(init=False)
    names: dict[RequestKey, str] = attrs.field(factory=dict, init=False)
    seconds: dict[str, float] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        costs = TurnCosts(lambda: self.now_s, lambda _: self.prompt_s)
        self.ledger = SlotLedger(1000, costs=costs)
        self.ledger.join(AGENT)
        self.ledger.update(AGENT, slots_total=self.slots, accepting=True)

    def ask(self, name: str) -> RequestKey:
        key = RequestKey(len(self.names))
        self.names[key] = name
        client, _, user = name.partition("/")
        self.ledger.ask(key, client=client, user=user)
        return key

    @property
    def holder(self) -> RequestKey:
        return next(iter(self.ledger._agents[AGENT].holders))

    def end(self, key: RequestKey, took_s: float) -> list[Granted]:
        self.now_s += took_s
        name = self.names[key]
        self.seconds[name] = self.seconds.get(name, 0.0) + took_s
        return self.ledger.end(key)


def share(took_s: dict[str, float], rounds: int, waiting: int = 3) -> dict[str, float]:
    """The seconds that clients, or users, get that keep so many waiting and take so long."""
    slots = Slots()
    for name in took_s:
        for _ in range(waiting):
            slots.ask(name)
    for _ in range(rounds):
        name = slots.names[slots.holder]
        slots.end(slots.holder, took_s[name])
        slots.ask(name)
    return slots.seconds


def test_who_takes_long_has_few_turns_and_no_more_of_the_slots() -> None:
    seconds = share({"long": 8.0, "short": 0.25}, 2000)
    assert seconds["short"] == pytest.approx(seconds["long"], rel=0.1)


def test_users_of_one_client_have_equal_parts_of_its_time() -> None:
    seconds = share({"shop/long": 4.0, "shop/short": 0.5, "other/": 1.0}, 2000)
    assert seconds["shop/short"] == pytest.approx(seconds["shop/long"], rel=0.15)
    assert seconds["other/"] == pytest.approx(
        seconds["shop/short"] + seconds["shop/long"], rel=0.15
    )


def test_a_flood_of_requests_that_cost_next_to_nothing_is_charged_something() -> None:
    seconds = share({"flood": 0.0001, "usual": 1.0}, 2000)
    flood, usual = seconds["flood"] / 0.0001, seconds["usual"] / 1.0
    assert flood / usual == pytest.approx(1.0 / LEAST_S, rel=0.2)


def test_as_long_as_nothing_was_measured_a_request_costs_a_turn() -> None:
    slots = Slots(prompt_s=50.0)
    slots.ask("holder")
    keys = [slots.ask(client) for client in ("a", "a", "b")]
    assert [slots.ledger.position(key) for key in keys] == [0, 2, 1]


def test_a_prompt_that_nobody_has_computed_counts_when_it_arrives() -> None:
    slots = Slots()
    for _ in range(3):
        slots.end(slots.ask("usual"), 1.0)
    slots.ask("holder")
    slots.prompt_s = 10.0
    slots.ask("long")
    slots.prompt_s = 0.0
    others = [slots.ask("short") for _ in range(3)]
    behind = slots.ask("long")
    assert all((slots.ledger.position(key) or 0) < 4 for key in others)
    assert slots.ledger.position(behind) == 4


def test_a_client_that_was_thought_dear_and_is_not_pays_for_what_it_took() -> None:
    """Such as one that asks for 100,000 tokens and gets 5: it is not set back for ever."""
    slots = Slots()
    slots.end(slots.ask("usual"), 1.0)
    holder = slots.ask("holder")
    slots.prompt_s = 1000.0
    key = slots.ask("dear")
    slots.prompt_s = 0.0
    others = [slots.ask("new") for _ in range(5)]
    before = slots.ask("dear")
    assert slots.ledger.position(before) == 6  # behind what it was thought to cost
    slots.end(holder, 1.0)
    assert slots.holder == key
    slots.end(key, 1.0)
    slots.ledger.end(before)
    mine = slots.ask("dear")
    assert [slots.ledger.position(key) for key in (*others[1:], mine)] == [0, 2, 3, 4, 1]


def test_a_client_that_was_thought_cheap_pays_when_it_ends() -> None:
    slots = Slots()
    holder = slots.ask("sly")
    for _ in range(5):
        key = slots.ask("sly")
        slots.end(holder, 1.0)
        holder = key
    slots.end(holder, 20.0)
    slots.ask("holder")
    mine = slots.ask("sly")
    others = [slots.ask("new") for _ in range(8)]
    assert all((slots.ledger.position(key) or 0) < 8 for key in others[:5])
    assert (slots.ledger.position(mine) or 0) >= 5


def test_who_withdraws_a_cheap_request_still_owes_for_the_dear_one() -> None:
    slots = Slots()
    for _ in range(3):
        slots.end(slots.ask("sly"), 1.0)
    slots.end(slots.ask("sly"), 20.0)
    slots.ask("holder")
    for _ in range(5):
        slots.ledger.end(slots.ask("sly"))
    mine = slots.ask("sly")
    for _ in range(8):
        slots.ask("new")
    assert (slots.ledger.position(mine) or 0) >= 5


def test_time_on_an_agent_that_was_lost_is_not_charged() -> None:
    slots = Slots()
    for _ in range(3):
        slots.end(slots.ask("unlucky"), 1.0)
    key = slots.ask("unlucky")
    slots.now_s += 60.0
    slots.ledger.leave(AGENT)
    slots.ledger.ask_again(key)
    slots.ledger.join(AGENT)
    slots.ledger.update(AGENT, slots_total=1, accepting=True)
    slots.end(key, 1.0)
    slots.ask("holder")
    slots.ask("new")
    assert slots.ledger.position(slots.ask("unlucky")) == 1


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e9), st.floats(0, 1e9)), max_size=60)
)
def test_a_charge_is_within_its_bounds_and_the_sum_is_what_was_used(
    requests: list[tuple[str, float, float]],
) -> None:
    now_s = prompt_s = 0.0
    costs = TurnCosts(lambda: now_s, lambda _: prompt_s)
    for number, (client, took_s, prompt_s) in enumerate(requests):  # noqa: B007
        charge = costs.estimate(RequestKey(number), client)
        charge.since_s = now_s
        now_s += took_s
        charged = charge.turns + costs.ended(charge, client)
        for turns in (charge.turns, charged):
            assert LEAST_TURNS <= turns <= MOST_TURNS
            assert (turns * 256).is_integer()


def test_what_is_remembered_of_clients_is_bounded() -> None:
    now_s = 0.0
    costs = TurnCosts(lambda: now_s)
    for number in range(5000):
        charge = costs.estimate(RequestKey(number), f"client {number}")
        charge.since_s = now_s
        now_s += 1.0
        costs.ended(charge, f"client {number}")
    assert len(costs._rest_s) <= 4096
