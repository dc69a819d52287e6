"""Agents in the fields of Paddler 1.x, and when watchers are told."""

from __future__ import annotations

import time
from typing import Any

import attrs
import pytest
import trio
from dispatch_world import Peer, World, status_of, world
from trio.testing import MockClock

from exchanges import exchange_for
from paddler_trio.balancer.agents.paddler_v1_agents import LEAST_S, LONGEST_S, PaddlerV1Agents
from paddler_trio.balancer.front.event_stream import event_stream
from paddler_trio.net.server.asgi import Message
from paddler_trio.wire.codec import loads
from paddler_trio.wire.paddler.agent_issue import ModelCannotBeLoaded
from paddler_trio.wire.trio.upstream_messages import Upstream

FIELDS = [
    "agent_id",
    "agent_name",
    "error",
    "external_llamacpp_addr",
    "is_authorized",
    "is_slots_endpoint_enabled",
    "last_update",
    "quarantined_until",
    "slots_idle",
    "slots_processing",
]
READY = Upstream(phase="ready", address="10.0.3.17:8088", slots_endpoint=True)


def in_front_of(here: World, server: Upstream, *, slots: int = 2) -> Peer:
    peer = here.agent(slots=slots)
    peer.connection.upstream = server
    return peer


def only(view: PaddlerV1Agents) -> dict[str, Any]:
    document: Any = loads(view.current())
    (agent,) = document["agents"]
    assert list(document) == ["agents"]
    assert sorted(agent) == FIELDS
    return dict(agent)


def seconds(system_time: dict[str, int]) -> float:
    assert list(system_time) == ["secs_since_epoch", "nanos_since_epoch"]
    assert 0 <= system_time["nanos_since_epoch"] < 10**9
    return system_time["secs_since_epoch"] + system_time["nanos_since_epoch"] / 1e9


async def test_a_server_has_the_fields_that_paddlers_agents_had() -> None:
    async with world() as here:
        peer = in_front_of(here, READY)
        here.submit()
        view = PaddlerV1Agents(here.dispatcher)
        before_s = time.time()
        shown = only(view)
        assert abs(seconds(shown.pop("last_update")) - before_s) < 5
        assert shown == {
            "agent_id": "id1",
            "agent_name": "a1",
            "error": None,
            "external_llamacpp_addr": "10.0.3.17:8088",
            "is_authorized": True,
            "is_slots_endpoint_enabled": True,
            "quarantined_until": None,
            "slots_idle": 1,
            "slots_processing": 1,
        }
        (lease,) = peer.connection.leases()
        peer.says(lease.wire_id, done=True)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (
            Upstream(phase="unauthorised", detail="give --upstream-key-file"),
            {"is_authorized": False, "error": "give --upstream-key-file"},
        ),
        (
            Upstream(phase="unreachable", detail="connection refused"),
            {"is_authorized": None, "error": "connection refused"},
        ),
        (Upstream(phase="failing"), {"is_authorized": True, "error": "the server is failing"}),
        (Upstream(phase="sleeping"), {"is_authorized": True, "error": None}),
        (
            Upstream(phase="ready", slots_endpoint=False),
            {"is_slots_endpoint_enabled": False, "error": None},
        ),
        (Upstream(phase="ready", busy_elsewhere=3), {"slots_processing": 3, "slots_idle": 2}),
    ],
)
async def test_what_is_wrong_with_a_server_is_said_as_then(
    server: Upstream, expected: dict[str, object]
) -> None:
    async with world() as here:
        in_front_of(here, server)
        shown = only(PaddlerV1Agents(here.dispatcher))
        assert {name: shown[name] for name in expected} == expected


async def test_a_server_that_fails_too_often_is_quarantined(autojump_clock: MockClock) -> None:
    async with world() as here:
        in_front_of(here, READY)
        in_front_of(here, READY)  # half of a fleet stays, whatever it does
        health, now_s = here.dispatcher.health, trio.current_time()
        for _ in range(3):
            length_s = health.failed("a1", now_s)
        assert length_s is not None
        for agent in here.dispatcher.agents.values():
            agent.refresh_readiness()
        document: Any = loads(PaddlerV1Agents(here.dispatcher).current())
        failed, well = document["agents"]
        left_s = seconds(failed["quarantined_until"]) - seconds(failed["last_update"])
        assert left_s == pytest.approx(length_s)
        assert (failed["slots_idle"], well["slots_idle"]) == (0, 2)
        assert well["quarantined_until"] is None


async def test_an_agent_with_a_model_of_its_own_has_no_address_and_its_issues() -> None:
    async with world() as here:
        agent = here.agent(slots=2).connection
        agent.status = attrs.evolve(status_of(2), issues=(ModelCannotBeLoaded("m.gguf"),))
        shown = only(PaddlerV1Agents(here.dispatcher))
        assert shown["external_llamacpp_addr"] is None
        assert (shown["is_authorized"], shown["is_slots_endpoint_enabled"]) == (True, True)
        assert shown["error"] == "ModelCannotBeLoaded"
        assert (shown["slots_idle"], shown["slots_processing"]) == (2, 0)


async def test_the_last_update_is_when_the_last_status_came(autojump_clock: MockClock) -> None:
    async with world() as here:
        agent = in_front_of(here, READY).connection
        view = PaddlerV1Agents(here.dispatcher)
        first_s = seconds(only(view)["last_update"])
        await trio.sleep(7)
        # the mock clock went on alone: what was said seven seconds ago is as old to the wall's
        assert seconds(only(view)["last_update"]) == pytest.approx(first_s - 7, abs=1)
        agent.reported_s = trio.current_time()
        await trio.sleep(LEAST_S)
        assert seconds(only(view)["last_update"]) == pytest.approx(first_s, abs=1)


async def test_a_change_is_told_at_once_to_readers_and_twice_a_second_to_watchers(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        in_front_of(here, READY)
        view = PaddlerV1Agents(here.dispatcher)
        text, began_s = view.begin(), trio.current_time()
        times_s = []
        for _ in range(3):
            here.dispatcher.agents_changed.notify()
            assert view.current() != b""
            text = await view.next(text)
            times_s.append(trio.current_time() - began_s)
        assert times_s == [LEAST_S, 2 * LEAST_S, 3 * LEAST_S]
        in_front_of(here, READY)
        assert len(loads(view.current())["agents"]) == 2  # type: ignore[call-overload,index]


async def test_a_stream_says_every_five_seconds_that_nothing_changed(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        in_front_of(here, READY)
        view, goodbye = PaddlerV1Agents(here.dispatcher), trio.Event()
        told, seen = trio.open_memory_channel[Message](0)

        async def receive() -> Message:
            await trio.sleep_forever()
            raise AssertionError

        async with trio.open_nursery() as nursery:
            handler = event_stream(view, goodbye=goodbye)
            nursery.start_soon(handler, exchange_for({}, receive, told.send), {})
            times_s = []
            async for message in seen:
                body = bytes(message.get("body", b""))
                if body.startswith(b"data: "):
                    times_s.append(trio.current_time())
                    assert view.watchers == 1
                if len(times_s) == 3:
                    break
            nursery.cancel_scope.cancel()
        first_s = times_s[0]
        assert [each - first_s for each in times_s] == [0, LONGEST_S, 2 * LONGEST_S]
        assert view.watchers == 0
