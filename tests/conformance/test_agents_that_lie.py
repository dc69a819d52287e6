"""What an agent says of itself is bounded; what it says that nobody knows is ignored."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import pytest
import trio
import trio_websocket
from native_client import running_balancer, text_of
from paddler_agent import dial, serving_agent, status_snapshot
from structlog.testing import capture_logs

from paddler_trio.wire.trio.trio_link import SUBPROTOCOL

Json: TypeAlias = Any


@pytest.mark.parametrize("slots", [2**31 - 1, 4097, -1])
async def test_slots_that_no_agent_has_end_the_link(slots: int) -> None:
    async with running_balancer() as balancer:
        async with dial(balancer.management, "a0") as liar:
            await liar.register("a0", slots_total=slots)
            await liar.wait_closed()
        async with serving_agent(balancer.management, "a1") as other:
            async with serving_agent(balancer.management, "a2") as liar:
                await liar.update(slots_total=slots)
                await liar.wait_closed()
            async with balancer.generate() as answer:
                await other.answer((await other.next_request())[0])
                assert text_of(await answer.rest()) == "ok"
        url = f"http://{balancer.inference}/slots"
        assert (await balancer.http.get(url)).json() == []


async def test_a_name_and_an_id_have_a_length() -> None:
    async with running_balancer() as balancer:
        with capture_logs() as records:
            async with dial(balancer.management, "a0") as liar:
                await liar.register("n" * 1_000_000)
                await liar.wait_closed()
            with pytest.RaisesGroup(trio_websocket.HandshakeError):
                async with dial_as_ours(balancer.management, "i" * 257):
                    raise AssertionError("it was accepted")
        reasons = [r["reason"] for r in records if r["event"] == "closing agent link"]
        assert len(reasons) == 2
        assert "name has 1000000 characters, the limit is 256" in reasons[0]
        assert "id has 257 characters, the limit is 256" in reasons[1]
        assert max(map(len, reasons)) < 200
        async with dial(balancer.management, "i" * 256) as honest:
            await honest.register("n" * 256)
            await balancer.wait_agents(lambda agents: len(agents) == 1)


async def test_what_cannot_be_seen_is_escaped_in_a_name_and_refused_in_an_id() -> None:
    async with running_balancer() as balancer:
        async with dial(balancer.management, "a0") as liar:
            await liar.register("n\x1b]0;x\x07\x9b\u2028\u202eé")
            (agent,) = await balancer.wait_agents(lambda agents: len(agents) == 1)
            assert agent["name"] == r"n\x1b]0;x\x07\x9b\u2028\u202eé"
            metrics = await balancer.http.get(f"http://{balancer.management}/metrics")
            assert r"n\\x1b" in metrics.text
            assert all(line.isprintable() for line in metrics.text.split("\n"))
        with capture_logs() as records, pytest.RaisesGroup(trio_websocket.HandshakeError):
            async with dial_as_ours(balancer.management, "a%E2%80%AE1"):
                raise AssertionError("it was accepted")
        (reason,) = (r["reason"] for r in records if r["event"] == "closing agent link")
        assert r"cannot be seen: 'a\\u202e1'" in reason


async def test_issues_are_as_many_and_as_long_as_anybody_reads() -> None:
    template = {"error": "e", "model_path": {"model_path": "/m"}, "template_content": "t" * 10**7}
    slots = [{"SlotCannotStart": {"error": "no room", "slot_index": n}} for n in range(5000)]
    async with running_balancer() as balancer, dial(balancer.management, "a0") as liar:
        await liar.register("a0", issues=[{"ChatTemplateDoesNotCompile": template}])
        (agent,) = await balancer.wait_agents(lambda agents: len(agents) == 1)
        (issue,) = agent["issues"]
        assert len(issue["ChatTemplateDoesNotCompile"]["template_content"]) == 65536
        await liar.update(issues=slots, model_path="/" * 10**7, download_filename="f" * 10**7)
        (agent,) = await balancer.wait_agents(lambda agents: len(agents[0]["issues"]) > 1)
        assert len(agent["issues"]) == 512
        assert len(agent["model_path"]) == len(agent["download_filename"]) == 16384


@pytest.mark.parametrize(
    "notification", ["Rebalanced", {"Rebalanced": {"anything": [1, 2]}}, {"Version": None}]
)
async def test_a_notification_that_nobody_knows_is_ignored_and_logged_once(
    notification: Json,
) -> None:
    async with running_balancer() as balancer, serving_agent(balancer.management, "a0") as agent:
        with capture_logs() as records:
            for _ in range(3):
                await agent.notify(notification)
            for number in range(100):
                await agent.notify(f"Unheard{number}")
            async with balancer.generate() as answer:
                await agent.answer((await agent.next_request())[0])
                assert text_of(await answer.rest()) == "ok"
        ignored = [r for r in records if r["event"] == "unknown notification ignored"]
        name = notification if isinstance(notification, str) else next(iter(notification))
        assert [r["notification"] for r in ignored].count(name) == 1
        assert len(ignored) == 32


async def test_what_a_newer_agent_of_ours_adds_is_ignored_and_its_figures_are_numbers() -> None:
    async with (
        running_balancer() as balancer,
        dial_as_ours(balancer.management, "a0") as socket,
    ):
        await socket.get_message()
        registration = {"name": "a0", "slot_aggregated_status_snapshot": status_snapshot()}
        await say(socket, {"Notification": {"RegisterAgent": registration}})
        await say(socket, {"Trio": {"Novelty": {"a": 1}}})
        await say(socket, {"Trio": "Novelty"})
        report = {
            "phase": "p" * 10**6,
            "wanted_state": "w" * 10**6,
            "served_state": None,
            "model": None,
            "progress": 7.5,
            "detail": "half a pair: \ud800",
            "engine": {
                "passes": 7,
                "nan": float("nan"),
                "deep": {"a": []},
                "words": "x" * 10**6,
                **{f"more{number}": 1.5 for number in range(10**4)},
            },
        }
        await say(socket, {"Trio": {"Report": report}})
        url = f"http://{balancer.management}/api/v2/agents"
        agent: Json = {}
        with trio.fail_after(60):
            while agent.get("engine") is None:
                (agent,) = (await balancer.http.get(url)).raise_for_status().json()["agents"]
        assert len(agent["phase"]) == len(agent["wanted_state"]) == 256
        assert (agent["progress"], agent["detail"]) == (1.0, "half a pair: ?")
        assert agent["engine"]["passes"] == 7
        assert len(agent["engine"]) == 128
        assert {type(value) for value in agent["engine"].values()} == {int, float}


@asynccontextmanager
async def dial_as_ours(
    management: str, agent_id: str
) -> AsyncIterator[trio_websocket.WebSocketConnection]:
    host, _, port = management.rpartition(":")
    async with (
        await trio.open_tcp_stream(host, int(port)) as stream,
        trio.open_nursery() as nursery,
    ):
        yield await trio_websocket.wrap_client_stream(
            nursery,
            stream,
            management,
            f"/api/v1/agent_socket/{agent_id}",
            subprotocols=[SUBPROTOCOL],
        )
        nursery.cancel_scope.cancel()


async def say(socket: trio_websocket.WebSocketConnection, frame: Json) -> None:
    await socket.send_message(json.dumps(frame))
