"""Two dispatchers and one agent, while the second takes over from the first.

The agent's accounts are the real ones. What is sent between the three takes its time: each message
arrives when Hypothesis says so, in the order of its link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs
import trio
from dispatch_world import Peer, World, heard, status_of, world
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model.slot_shares import SlotShare, SlotShares
from paddler_trio.balancer.hot_restart.departure import FOLLOW_S, Departure
from paddler_trio.nursery_tree.agent_kinds import PADDLER, Feature
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.request import Request
from paddler_trio.nursery_tree.request_endings import MOVED
from paddler_trio.wire.paddler.messages import AgentRequest, StopRespondingTo
from paddler_trio.wire.trio.trio_link import Leaving, Start

LIMITS: Final = DispatchLimits(max_buffered=20, buffered_timeout_s=1e6, item_timeout_s=1e6)


@attrs.define(eq=False)
class Link:
    """The agent's end of one link, and what is on its way there and back."""

    here: World
    peer: Peer
    share: SlotShare
    shares: SlotShares
    running: list[str] = attrs.field(factory=list)
    down: deque[Callable[[], None]] = attrs.field(factory=deque)
    up: deque[Callable[[], None]] = attrs.field(factory=deque)
    offered: int = -1
    is_open: bool = True

    def collect(self) -> None:
        """What was sent is on its way now."""
        if self.is_open and self.peer.connection.scope.cancel_called:
            self.is_open = False
            self.here.dispatcher.leave(self.peer.connection)
            self.down.append(lambda: self.shares.close(self.share))
        for frame in self.peer.received():
            match frame:
                case Leaving(slots):
                    self.down.append(lambda slots=slots: self.shares.leave(self.share, slots))
                case AgentRequest() | Start():
                    self.running.append(frame.id)
                case StopRespondingTo(wire_id):
                    raise AssertionError(f"{wire_id} was stopped")
        offered = self.shares.offered(self.share)
        if offered != self.offered:
            self.offered = offered
            self.up.append(lambda: self.update(offered))

    def update(self, slots: int) -> None:
        connection = self.peer.connection
        if self.is_open:
            connection.status = attrs.evolve(status_of(slots), desired_slots_total=self.most)
            connection.refresh_readiness()
            self.here.dispatcher.update(connection)

    @property
    def most(self) -> int:
        return self.shares.status.slots

    def finish(self, number: int) -> None:
        self.peer.says(self.running.pop(number % len(self.running)), "x", done=True)


def follower(here: World, slots: int) -> Peer:
    return here.agent(slots=slots, features={Feature.FOLLOWS})


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "old down",
                "old up",
                "new down",
                "new up",
                "finish old",
                "finish new",
                "submit new",
                "submit old",
            ]
        ),
        st.integers(0, 9),
    ),
    min_size=10,
    max_size=60,
)


@settings(deadline=None)
@given(slots=st.integers(1, 4), before=st.integers(0, 9), begin=st.integers(0, 6), steps=STEPS)
def test_no_slot_is_given_twice_and_every_request_ends_where_it_was_sent(
    slots: int, before: int, begin: int, steps: list[tuple[str, int]]
) -> None:
    async def main() -> None:
        async with world(LIMITS) as old_world, world(LIMITS) as new_world:
            status = AgentStatus(slots)
            status.set(is_serving=True)
            shares = SlotShares(status)
            old = Link(old_world, follower(old_world, slots), shares.open(), shares)
            new = Link(new_world, follower(new_world, 0), shares.open(), shares)
            sent = [old_world.submit(f"old {number}") for number in range(before)]
            late: list[Request] = []
            departure = Departure(old_world.dispatcher)

            async def settle() -> None:
                await wait_all_tasks_blocked()
                old.collect()
                new.collect()
                busy = len(old.running) + len(new.running)
                assert busy <= slots, f"{busy} requests in {slots} slots"

            async def do(step: str, number: int) -> None:
                side = old if "old" in step else new
                if "down" in step and side.down:
                    side.down.popleft()()
                elif "up" in step and side.up:
                    side.up.popleft()()
                elif "finish" in step and side.running:
                    side.finish(number)
                elif step == "submit new" and len(sent) < before + 9:
                    sent.append(new_world.submit("new"))
                elif step == "submit old" and len(late) < 5:
                    late.append(old_world.submit("late"))  # over a connection that was kept
                await settle()

            await settle()
            async with trio.open_nursery() as nursery:
                await nursery.start(departure.run)
                for place, (step, number) in enumerate(steps):
                    if place == begin:
                        departure.let_go()
                    await do(step, number)
                departure.let_go()
                while old.is_open or old.down or new.up or old.running or new.running:
                    for step in ("old down", "old up", "new down", "new up"):
                        await do(step, 0)
                    await do("finish old", 0)
                    await do("finish new", 0)
                nursery.cancel_scope.cancel()
            assert new.offered == slots
            for request in sent:
                assert await heard(request) == ("x", None)
            for request in late:
                assert await heard(request) in [("x", None), ("", MOVED)]
            new_world.dispatcher.leave(new.peer.connection)

    trio.run(main, clock=MockClock())


async def answers(*requests: Request) -> list[object]:
    return [await heard(each) for each in requests]


async def test_agents_are_told_once_that_they_are_left_and_then_whenever_less_is_kept(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        ours, theirs = follower(here, 2), here.agent(slots=2, kind=PADDLER)
        first, second, third = (here.submit(name) for name in "123")
        await wait_all_tasks_blocked()
        assert sorted([*ours.sent(), *theirs.sent()]) == ["start 1.1", "start 2.1", "start 3.1"]
        departure = Departure(here.dispatcher)
        async with trio.open_nursery() as nursery:
            await nursery.start(departure.run)
            assert list(ours.received()) == [Leaving(2)]
            assert list(theirs.received()) == [], "Paddler's agents know nothing of this"
            departure.let_go()
            held = len(ours.connection.leases())
            assert list(ours.received()) == ([Leaving(held)] if held < 2 else [])
            for peer in (ours, theirs):
                for lease in peer.connection.leases():
                    assert not peer.connection.scope.cancel_called
                    peer.says(lease.wire_id, "x", done=True)
            await wait_all_tasks_blocked()
            assert ours.connection.scope.cancel_called
            assert theirs.connection.scope.cancel_called, "it dials the other process now"
            nursery.cancel_scope.cancel()
        assert await answers(first, second, third) == [("x", None)] * 3


async def test_a_request_that_comes_after_all_slots_were_let_go_is_told_to_come_again(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        follower(here, 2)
        departure = Departure(here.dispatcher)
        async with trio.open_nursery() as nursery:
            await nursery.start(departure.run)
            departure.let_go()
            late = here.submit("late")
            await wait_all_tasks_blocked()
            assert await heard(late) == ("", MOVED)
            nursery.cancel_scope.cancel()


async def test_an_agent_that_is_asked_something_is_kept_until_it_has_answered(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = follower(here, 2)
        departure = Departure(here.dispatcher)
        async with trio.open_nursery() as nursery:
            await nursery.start(departure.run)
            nursery.start_soon(agent.connection.questions.ask_tree)
            await wait_all_tasks_blocked()
            departure.let_go()
            assert not agent.connection.scope.cancel_called
            agent.connection.questions.answer("query.1", {})
            await trio.sleep(1.5)
            assert agent.connection.scope.cancel_called
            nursery.cancel_scope.cancel()


async def test_followers_are_waited_for_and_only_for_so_long(autojump_clock: MockClock) -> None:
    async with world() as here:
        quick, slow = follower(here, 1), follower(here, 1)
        here.agent(slots=1, kind=PADDLER)
        departure = Departure(here.dispatcher)
        began_s = trio.current_time()
        quick.connection.has_followed = True
        await departure.wait_followed()
        assert trio.current_time() == began_s + FOLLOW_S
        slow.connection.has_followed = True
        await departure.wait_followed()
        assert trio.current_time() == began_s + FOLLOW_S
