"""Snapshots go out when they differ; a change that they do not show is silence with comments."""

from __future__ import annotations

import attrs
import trio
from dispatch_world import world
from trio.testing import MockClock, wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.agents.agent_snapshot import snapshot, snapshot_v2
from paddler_trio.balancer.fleet.shared_view import (
    LONGEST_PAUSE_S,
    WATCHERS_BYTES_A_SECOND,
    AgentsView,
    SharedView,
)
from paddler_trio.balancer.front.event_stream import KEEP_ALIVE_S, event_stream
from paddler_trio.net.server.asgi import Message
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_kinds import TRIO
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.scheduler.dispatch.health import HealthTracker
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.codec import dumps, loads
from paddler_trio.wire.paddler.status import (
    AgentStateApplicationStatus,
    SlotAggregatedStatusSnapshot,
)
from paddler_trio.wire.trio.trio_link import Report


async def test_only_what_differs_is_told_and_silence_is_commented_in_time(
    autojump_clock: MockClock,
) -> None:
    shown = {"n": 0}
    changes, goodbye = Changes(), trio.Event()
    told, seen = trio.open_memory_channel[Message](0)
    handler = event_stream(SharedView(lambda: dumps(shown), changes), goodbye=goodbye)

    async def receive() -> Message:
        await trio.sleep_forever()
        raise AssertionError

    async def next_body() -> bytes:
        return bytes((await seen.receive())["body"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(handler, exchange_for({}, receive, told.send), {})
        assert (await seen.receive())["type"] == "http.response.start"
        assert await next_body() == b'data: {"n":0}\n\n: keep-alive\n\n'
        began_s = trio.current_time()
        for _ in range(5):  # something changed that this snapshot does not show
            changes.notify()
            await trio.sleep(KEEP_ALIVE_S / 10)
        assert await next_body() == b": keep-alive\n\n"
        assert trio.current_time() - began_s == KEEP_ALIVE_S
        shown["n"] = 1
        changes.notify()
        assert await next_body() == b'data: {"n":1}\n\n'
        assert trio.current_time() - began_s == KEEP_ALIVE_S
        goodbye.set()
        assert (await seen.receive())["more_body"] is False


@attrs.define(eq=False)
class Counted:
    """A text that changes when it is told to, and how often anybody asked for it."""

    size: int
    number: int = 0
    renders: int = 0
    changes: Changes = attrs.field(factory=Changes)

    def render(self) -> bytes:
        self.renders += 1
        return b"%d" % self.number + b"." * self.size

    def change(self) -> None:
        self.number += 1
        self.changes.notify()


async def test_all_watchers_share_one_text_that_is_made_once_a_change(
    autojump_clock: MockClock,
) -> None:
    shown = Counted(size=10)
    view = SharedView(shown.render, shown.changes)
    texts: list[list[bytes]] = [[] for _ in range(50)]

    async def watch(told: list[bytes]) -> None:
        view.watchers += 1
        told.append(view.begin())
        while True:
            told.append(await view.next(told[-1]))

    async with trio.open_nursery() as nursery:
        for told in texts:
            nursery.start_soon(watch, told)
        await trio.sleep(1)
        for _ in range(3):
            shown.change()
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert shown.renders == 4
    assert view.current() == b"3.........."
    assert all([text[:1] for text in told] == [b"0", b"1", b"2", b"3"] for told in texts)
    assert len({id(text) for told in texts for text in told}) == 4, "not one copy each"


async def test_watchers_get_the_last_state_and_no_more_bytes_than_allowed(
    autojump_clock: MockClock,
) -> None:
    """A fleet of 500 agents that changes a thousand times a second, seen by twenty."""
    shown = Counted(size=300_000)
    view = SharedView(shown.render, shown.changes)
    received = 0
    last: dict[int, bytes] = {}

    async def watch(number: int) -> None:
        nonlocal received
        view.watchers += 1
        last[number] = view.begin()
        while True:
            last[number] = await view.next(last[number])
            received += len(last[number])

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(watch, number)
        await trio.sleep(5)
        for _ in range(10_000):
            shown.change()
            await trio.sleep(0.001)
        await trio.sleep(LONGEST_PAUSE_S)
        assert set(last.values()) == {view.current()}, "the last state"
        assert shown.number == 10_000
        nursery.cancel_scope.cancel()
    assert 9 <= shown.renders <= 15
    assert received / 11 < 2 * WATCHERS_BYTES_A_SECOND


async def test_one_watcher_of_a_small_fleet_sees_what_lasts_ten_milliseconds(
    autojump_clock: MockClock,
) -> None:
    shown = Counted(size=1000)
    view = SharedView(shown.render, shown.changes)
    seen: list[bytes] = []

    async def watch() -> None:
        view.watchers += 1
        seen.append(view.begin())
        while True:
            seen.append(await view.next(seen[-1]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for _ in range(100):
            await trio.sleep(0.01)
            shown.change()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert [int(text.rstrip(b".")) for text in seen] == list(range(101))


async def test_agents_are_shown_as_ever_and_rendered_again_when_they_change() -> None:
    dispatcher = Dispatcher(DispatchLimits())
    rendered: list[str] = []

    def show(agent: AgentConnection, slots: int) -> dict[str, object]:
        rendered.append(agent.id)
        return dict(snapshot_v2(agent, slots))

    v1 = AgentsView(dispatcher, snapshot)
    v2 = AgentsView(dispatcher, show, lambda: {"desired_state_digest": "d", "x": None})
    assert v1.render() == b'{"agents":[]}'
    assert v2.render() == b'{"desired_state_digest":"d","x":null,"agents":[]}'
    agents = [agent_of(dispatcher, number) for number in range(3)]
    for agent in agents:
        dispatcher.join(agent)

    def check(*changed: str) -> None:
        rendered.clear()
        shown = [snapshot_v2(a, dispatcher.slots_processing(a.key)) for a in agents]
        assert loads(v2.render()) == {"desired_state_digest": "d", "x": None, "agents": shown}
        assert tuple(rendered) == changed
        plain = [snapshot(a, dispatcher.slots_processing(a.key)) for a in agents]
        assert v1.render() == dumps({"agents": plain})

    check("a0", "a1", "a2")
    check()
    agents[1].status = attrs.evolve(agents[1].status, model_path="/n")
    check("a1")
    agents[2].report = Report("loading", None, None, None, 0.5, None)
    check("a2")
    dispatcher.drain_agent(agents[0], drained=True)
    check("a0")
    agents[0].usable_slots = 7
    check("a0")
    agents[0].is_accepting = True
    check("a0")
    dispatcher.leave(agents.pop(1))
    check()


async def test_a_stream_beside_500_agents_and_20_watchers_causes_no_work_for_them(
    autojump_clock: MockClock,
) -> None:
    """All agents report once a second, and one of them sends tokens meanwhile."""
    num_agents, seconds, tokens_per_s = 500, 2, 300
    shown: list[str] = []
    texts: list[int] = []

    def show(agent: AgentConnection, slots: int) -> dict[str, object]:
        shown.append(agent.id)
        return dict(snapshot_v2(agent, slots))

    async with world() as here:
        peers = [here.agent(name=f"a{number}") for number in range(num_agents)]
        for peer in peers:
            peer.connection.is_accepting = True
        agents = AgentsView(here.dispatcher, show)

        def render() -> bytes:
            texts.append(len(shown))
            return agents.render()

        view = SharedView(render, here.dispatcher.agents_changed)
        handler = event_stream(view, goodbye=trio.Event())
        sent_bytes = 0

        async def never() -> Message:
            await trio.sleep_forever()
            raise AssertionError

        async def send(message: Message) -> None:
            nonlocal sent_bytes
            await trio.lowlevel.checkpoint()
            sent_bytes += len(message.get("body", b""))

        async def report() -> None:
            """Each agent in its turn, as they do when nobody synchronises them."""
            for number in range(num_agents * seconds):
                connection = peers[number % num_agents].connection
                version = connection.status.version + 1
                connection.status = attrs.evolve(
                    connection.status, version=version, model_path=f"/{number}"
                )
                here.dispatcher.update(connection)
                await trio.sleep(1 / num_agents)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(handler, exchange_for({}, never, send), {})
            await wait_all_tasks_blocked()
            request = here.submit()
            await wait_all_tasks_blocked()
            (label,) = request.agents
            (peer,) = (each for each in peers if each.connection.label == label)
            nursery.start_soon(report)
            for _ in range(tokens_per_s * seconds):
                rendered = len(texts)
                peer.says("1.1", "a")
                assert request.outbox.statistics().current_buffer_used == 1, "in the same step"
                assert len(texts) == rendered, "whoever looks is no part of it"
                assert await request.outbox.receive() is not None
                await trio.sleep(1 / tokens_per_s)
            nursery.cancel_scope.cancel()
        peer.says("1.1", done=True)
        assert len(texts) <= 2 + seconds / LONGEST_PAUSE_S + 1, "one for all, once a second"
        assert len(shown) <= num_agents * (1 + seconds + 1), "each agent once a change"
        assert sent_bytes / seconds < 3 * WATCHERS_BYTES_A_SECOND


def agent_of(dispatcher: Dispatcher, number: int) -> AgentConnection:
    outgoing, _ = trio.open_memory_channel[bytes](9)
    return AgentConnection(
        key=AgentKey(number),
        id=f"a{number}",
        name=None,
        kind=TRIO,
        status=SlotAggregatedStatusSnapshot(
            desired_slots_total=4,
            download_current=0,
            download_filename=None,
            download_indeterminate=True,
            download_total=0,
            issues=(),
            model_path="/m",
            slots_processing=0,
            slots_total=4,
            state_application_status=AgentStateApplicationStatus.APPLIED,
            uses_chat_template_override=False,
            version=1,
        ),
        scope=trio.CancelScope(),
        outgoing=outgoing,
        health=HealthTracker(),
    )
