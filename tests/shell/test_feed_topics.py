"""The topics of the feed about requests and agents, and the figures, beside a real dispatcher."""

from __future__ import annotations

import json
import random
from typing import Any

import attrs
import pytest
import trio
from dispatch_world import Peer, World, world
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.balancer.activity.agents_topic import AgentsTopic
from paddler_trio.balancer.activity.feed_topic import Topic, WholeTopic
from paddler_trio.balancer.activity.metrics_history import BUCKET_S, FIELDS, MetricsHistory
from paddler_trio.balancer.activity.metrics_observer import MetricsObserver
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.activity.request_lanes import RequestLanes
from paddler_trio.balancer.activity.requests_topic import ENDED_S, TOKENS_S, RequestsTopic
from paddler_trio.balancer.agents.agent_snapshot import snapshot_v2
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import Observers
from paddler_trio.nursery_tree.request import Request
from paddler_trio.wire.trio.prompt_stages import PromptStages
from paddler_trio.wire.trio.trio_link import Report

LIMITS = DispatchLimits(max_buffered=6, buffered_timeout_s=10, item_timeout_s=30)


@attrs.define(eq=False)
class Shown:
    """A topic, and what a watcher of it has."""

    topic: Topic
    values: dict[str, Any] = attrs.field(factory=dict)
    changed: list[str] = attrs.field(factory=list)
    """At the last look."""

    def __attrs_post_init__(self) -> None:
        self.topic.open()

    def look(self) -> dict[str, Any]:
        self.changed = []
        for change in self.topic.look(trio.current_time()):
            if change is not None:
                key, text = change
                self.changed.append(key)
                if text is None:
                    del self.values[key]
                else:
                    self.values[key] = json.loads(text)
        return self.values


@attrs.define(eq=False)
class Watched:
    """A world in which everything is watched."""

    here: World
    activity: RequestActivity = attrs.field(init=False)
    metrics: MetricsHistory = attrs.field(init=False)
    recorder: MetricsObserver = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.activity = RequestActivity()
        self.metrics = MetricsHistory(lambda: self.here.dispatcher.statistics().slots_total)
        self.recorder = MetricsObserver(self.metrics, self.activity.finished)
        self.here.dispatcher.observers = Observers((self.activity, self.recorder))

    def row(self) -> dict[str, Any]:
        return dict(zip(FIELDS, self.metrics.current(), strict=True))

    def requests(self, **options: int) -> Shown:
        return Shown(RequestsTopic(self.activity, **options))

    def agents(self) -> Shown:
        return Shown(AgentsTopic(self.here.dispatcher, RequestLanes(self.activity)))


def wire_ids(peer: Peer) -> list[str]:
    return [word.split()[1] for word in peer.sent() if word.startswith("start")]


@pytest.mark.parametrize("seed", range(12))
async def test_what_is_shown_is_what_there_is_whatever_happens(
    seed: int, autojump_clock: MockClock
) -> None:
    dice = random.Random(seed)
    async with world(LIMITS) as here:
        watched = Watched(here)
        requests: list[Request] = []
        peers: list[Peer] = []
        shown, lanes = watched.requests(), watched.agents()

        for number in range(120):
            leases = [(peer, each) for peer in peers for each in peer.connection.leases()]
            match dice.choice(["submit"] * 4 + ["step"] * 5 + ["stop", "join", "lose", "wait"]):
                case "submit":
                    requests.append(here.submit(f"r{number}"))
                case "step" if leases:
                    peer, lease = dice.choice(leases)
                    peer.says(lease.wire_id, "a", "b", done=dice.random() < 0.3)
                case "stop" if requests:
                    dice.choice(requests).stop()
                case "join" if len(peers) < 3:
                    peers.append(here.agent(slots=dice.randint(1, 3)))
                case "lose" if peers:
                    here.dispatcher.leave(peers.pop(dice.randrange(len(peers))).connection)
                case "wait":
                    await trio.sleep(dice.random() * 4)
            counts = here.dispatcher.statistics()
            assert watched.metrics.waiting == counts.requests_buffered
            assert watched.metrics.busy == counts.slots_processing
            if dice.random() < 0.5:
                check_requests(watched, shown.look())
                check_agents(here, lanes.look())
        for request in requests:
            request.stop()
        for peer in peers:
            here.dispatcher.leave(peer.connection)
        await wait_all_tasks_blocked()
        shown.look()
        await trio.sleep(ENDED_S)
        assert shown.look() == {}
        assert lanes.look() == {}
        assert watched.row()["requests"] + sum(row[1] for row in watched.metrics._rows) == len(
            requests
        )
        assert not watched.recorder._last_s
        lanes_held = lanes.topic.lanes  # type: ignore[attr-defined]
        assert not lanes_held._agents
        assert not lanes_held._places


def check_requests(watched: Watched, shown: dict[str, Any]) -> None:
    now_s = trio.current_time()
    activity = watched.activity
    there = {str(key): record for key, record in activity.in_flight.items()}
    assert there.keys() <= shown.keys()
    ended = {str(record.key): record for record in activity.finished}
    for key, value in shown.items():
        record = there.get(key) or ended[key]
        view = json.loads(json.dumps(record.view(now_s, brief=True)))
        del view["progress"], view["capture"]
        assert value | {"tokens": 0} == view | {"tokens": 0}


def check_agents(here: World, shown: dict[str, Any]) -> None:
    dispatcher = here.dispatcher
    assert shown.keys() == {str(key) for key in dispatcher.agents}
    for key, agent in dispatcher.agents.items():
        value = shown[str(key)]
        plain = snapshot_v2(agent, dispatcher.slots_processing(key))
        assert value | json.loads(json.dumps(plain)) == value
        letters = {"Leased": "p", "Streaming": "d", "Stopping": "s"}
        assert {(request, phase) for request, phase, _ in value["lanes"]} == {
            (lease.request.key, letters[type(lease.request.phase).__name__])
            for lease in agent.leases()
        }
        assert all(0 <= since <= trio.current_time() * 1000 + 1 for _, _, since in value["lanes"])


async def test_an_ended_request_is_shown_once_and_then_gone(autojump_clock: MockClock) -> None:
    async with world() as here:
        watched = Watched(here)
        shown = watched.requests()
        peer = here.agent()
        here.submit()
        (wire_id,) = wire_ids(peer)
        assert shown.look()["1"]["phase"] == "leased"
        assert shown.look() == shown.values
        assert shown.changed == []
        peer.says(wire_id, "a", done=True)
        assert shown.look()["1"]["ending"] == {
            "kind": "done",
            "code": None,
            "text": None,
            "finish": None,
        }
        await trio.sleep(ENDED_S / 2)
        shown.look()
        assert shown.changed == []
        await trio.sleep(ENDED_S / 2)
        assert shown.look() == {}


async def test_tokens_are_shown_once_a_second(autojump_clock: MockClock) -> None:
    async with world() as here:
        watched = Watched(here)
        shown = watched.requests()
        peer = here.agent()
        here.submit()
        (wire_id,) = wire_ids(peer)
        peer.says(wire_id, "a")
        shown.look()
        looks = 0
        for _ in range(40):
            await trio.sleep(TOKENS_S / 10)
            peer.says(wire_id, "a")
            shown.look()
            looks += len(shown.changed)
        assert looks in (3, 4)
        assert shown.values["1"]["tokens"] > 30
        peer.says(wire_id, done=True)


async def test_of_many_requests_those_that_changed_last_are_shown(
    autojump_clock: MockClock,
) -> None:
    async with world(DispatchLimits(max_buffered=100)) as here:
        watched = Watched(here)
        before = [here.submit() for _ in range(7)]
        shown = watched.requests(max_shown=5)
        assert [int(key) for key in shown.look()] == [3, 4, 5, 6, 7]
        requests = [here.submit() for _ in range(3)]
        assert {int(key) for key in shown.look()} == {6, 7, 8, 9, 10}
        before[0].stop()
        assert {int(key) for key in shown.look()} == {1, 7, 8, 9, 10}
        for request in (*before, *requests):
            request.stop()
        assert {int(key) for key in shown.look()} == {6, 7, 8, 9, 10}
        await trio.sleep(ENDED_S)
        assert shown.look() == {}
        shown.topic.close()
        here.submit().stop()
        assert not watched.activity._subscribers, "nothing is collected for nobody"


async def test_an_agent_is_shown_with_rates_restarts_and_its_ejection(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        watched = Watched(here)
        shown = watched.agents()
        peer, other = here.agent(), here.agent()
        agent = peer.connection
        joined_s = trio.current_time()
        for number in range(1, 11):
            agent.report = Report(
                "serving", None, None, "m", None, None, engine={"drawn_tokens": 50 * number}
            )
            shown.look()
            await trio.sleep(0.5)
        agent.engine_restarts = 3
        for _ in range(3):
            here.dispatcher._count_failure(agent)
        value = shown.look()["1"]
        assert value["joined_ms"] == round(joined_s * 1000)
        assert value["rates"]["generated_tokens_per_s"] == pytest.approx(100, rel=0.2)
        assert value["engine_restarts"] == 3
        assert value["ejected_until_ms"] == round((trio.current_time() + 2) * 1000)
        assert not value["is_accepting"]
        await trio.sleep(2)
        assert shown.look()["1"]["ejected_until_ms"] is None
        here.dispatcher.leave(other.connection)
        assert shown.look().keys() == {"1"}


async def test_half_a_surrogate_pair_of_an_agent_ends_nothing(autojump_clock: MockClock) -> None:
    async with world() as here:
        watched = Watched(here)
        requests, agents = watched.requests(), watched.agents()
        peer = here.agent()
        request = here.submit()
        (wire_id,) = wire_ids(peer)
        peer.connection.report = Report("ü\ud800", None, None, "m", None, None)
        assert agents.look()["1"]["phase"] == "ü\ud800"
        here.dispatcher.hand_back(peer.lease(wire_id), "broke \udfff", suspects=0)
        (placement,) = [each for each in requests.look()["1"]["placements"] if each["ending"]]
        assert "broke \udfff" in placement["ending"]
        request.stop()
        here.dispatcher.leave(peer.connection)


async def test_figures_are_what_happened(autojump_clock: MockClock) -> None:
    async with world(DispatchLimits(max_buffered=2, buffered_timeout_s=60)) as here:
        await trio.sleep(BUCKET_S - trio.current_time() % BUCKET_S)
        watched = Watched(here)
        here.nursery.start_soon(watched.metrics.run)
        start_ms = round(trio.current_time() * 1000)
        assert watched.row() == dict.fromkeys(FIELDS, 0) | {"start_ms": start_ms} | dict.fromkeys(
            [name for name in FIELDS if "_p" in name and name != "prompt_tokens"]
        )
        first, second, third = (here.submit() for _ in range(3))
        assert third.failure is not None, "the buffer is full"
        await trio.sleep(2)
        peer = here.agent()
        (wire_id,) = wire_ids(peer)
        peer.lease(wire_id).report_prompt(
            PromptStages(tokens=90, cached=40, template_ms=1, wait_ms=1, prefill_ms=1)
        )
        await trio.sleep(1)
        for _ in range(21):
            peer.says(wire_id, "a")
            await trio.sleep(0.1)
        peer.says(wire_id, done=True)
        (wire_id,) = wire_ids(peer)
        await trio.sleep(0.9)
        peer.says(wire_id, "a", "b", "c", done=True)
        row = watched.row()
        exact = {
            "ttft_p50_ms": 3000,
            "ttft_p95_ms": 6000,
            "itl_p50_ms": 100,
            "itl_p95_ms": 100,
            "queue_p50_ms": 2000,
            "queue_p95_ms": 5100,
        }
        assert {name: row.pop(name) for name in exact} == pytest.approx(exact, rel=0.05)
        assert row == {
            "start_ms": start_ms,
            "requests": 3,
            "failed": 1,
            "prompt_tokens": 90,
            "cached_tokens": 40,
            "generated_tokens": 24,
            "waiting_max": 2,
            "busy_max": 1,
            "slots": 1,
        }
        assert second.failure is first.failure is None
        await trio.sleep(2 * BUCKET_S)
        rows = watched.metrics.view(trio.current_time())["rows"]
        assert isinstance(rows, list)
        assert [each[0] for each in rows] == [start_ms, start_ms + 10_000, start_ms + 20_000]
        assert rows[0][1] == 3
        assert rows[1][1:] == (0, 0, *[None] * 6, 0, 0, 0, 0, 0, 1)
        await trio.sleep(3600)
        assert len(watched.metrics.view(trio.current_time())["rows"]) == 360  # type: ignore[arg-type]
        here.nursery.cancel_scope.cancel()


async def test_requests_that_find_a_slot_never_waited(autojump_clock: MockClock) -> None:
    async with world() as here:
        watched = Watched(here)
        peer = here.agent(slots=2)
        for _ in range(2):
            here.submit()
        for wire_id in wire_ids(peer):
            peer.says(wire_id, "a", done=True)
        row = watched.row()
        assert (row["waiting_max"], row["busy_max"], row["requests"]) == (0, 2, 2)


async def test_a_whole_topic_is_looked_at_when_its_number_differs() -> None:
    number, values = 0, {"a": 1, "b": 2}
    shown = Shown(WholeTopic("t", lambda now_s: values, lambda: number))
    assert shown.look() == {"a": 1, "b": 2}
    values = {"b": 3}
    assert shown.look() == {"a": 1, "b": 2}
    number = 1
    assert shown.look() == {"b": 3}
