"""A slot of an agent is offered over one link only, while balancers take over from each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model.slot_shares import SlotShare, SlotShares
from paddler_trio.scheduler.dispatch.slots_kept import slots_kept

EVENTS = st.lists(
    st.tuples(st.sampled_from(["open", "leave", "close", "serve", "pause"]), st.integers(0, 9)),
    max_size=30,
)


@given(slots=st.integers(1, 9), events=EVENTS)
def test_all_links_together_offer_what_there_is_and_no_more(
    slots: int, events: list[tuple[str, int]]
) -> None:
    status = AgentStatus(slots)
    status.set(is_serving=True)
    shares = SlotShares(status)
    links: list[SlotShare] = []
    for event, number in events:
        match event:
            case "open":
                links.append(shares.open())
            case "leave" if links:
                link = links[number % len(links)]
                before = link.kept
                shares.leave(link, number)
                assert link.kept is not None
                assert before is None or link.kept <= before, "what was let go is not taken back"
            case "close" if links:
                shares.close(links.pop(number % len(links)))
            case "serve" | "pause":
                status.set(is_serving=event == "serve")
        offered = [shares.offered(link) for link in links]
        assert all(each >= 0 for each in offered)
        assert sum(offered) <= status.slots_total
        if any(link.kept is None for link in links):
            assert sum(offered) == status.slots_total, "nothing is wasted"


def test_the_newest_link_gets_what_the_one_before_lets_go() -> None:
    status = AgentStatus(4)
    status.set(is_serving=True)
    shares = SlotShares(status)
    old, new = shares.open(), shares.open()
    assert (shares.offered(old), shares.offered(new)) == (4, 0)
    for kept in (4, 3, 1):
        shares.leave(old, kept)
        assert (shares.offered(old), shares.offered(new)) == (kept, 4 - kept)
    shares.close(old)
    assert shares.offered(new) == 4


@given(before=st.integers(0, 20), held=st.integers(0, 20), waiting=st.integers(0, 50))
def test_kept_slots_never_grow_and_never_miss_one_that_is_in_use(
    before: int, held: int, waiting: int
) -> None:
    held = min(held, before)
    kept = slots_kept(before, held=held, waiting=waiting)
    assert held <= kept <= before
    assert waiting or kept == held
