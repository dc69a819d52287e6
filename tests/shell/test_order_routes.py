"""Orders and logs over a link that is slow, lost, of an older version, or well."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
from dispatch_world import Peer, World, world
from trio.testing import MockClock, wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.operations import order_routes
from paddler_trio.balancer.operations.order_routes import OrderRoutes
from paddler_trio.net.server.asgi import HttpProblem, Message
from paddler_trio.net.server.router import Router
from paddler_trio.nursery_tree.agent_kinds import PADDLER, Feature
from paddler_trio.wire.trio.operations.operator_orders import (
    MAX_LOG_WAIT_MS,
    Operate,
    ReadLog,
    Unload,
)
from paddler_trio.wire.trio.trio_link import Answer

TAKES_ORDERS = [Feature.ORDERS]


async def ask(here: World, method: str, path: str, query: str = "") -> tuple[int, str]:
    def find(agent_id: str) -> Any:
        for agent in here.dispatcher.agents.values():
            if agent_id in (agent.id, agent.name):
                return agent
        raise HttpProblem(404, "")

    router = Router()
    OrderRoutes(here.dispatcher, find).add_to(router)
    messages: list[Message] = []

    async def receive() -> Message:
        await trio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        await trio.lowlevel.checkpoint()
        messages.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": f"/api/v2/agents/{path}",
        "query_string": query.encode(),
        "headers": [],
    }
    await router(exchange_for(scope, receive, send))
    return messages[0]["status"], b"".join(m.get("body", b"") for m in messages).decode()


async def meanwhile(asking: Callable[[], Any], then: Callable[[], None]) -> tuple[int, str]:
    """What is answered when something happens while it is waited for."""
    found: list[tuple[int, str]] = []
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            found.append(await asking())

        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        then()
    return found[0]


def asked(agent: Peer) -> Operate:
    (operate,) = (frame for frame in agent.received() if isinstance(frame, Operate))
    return operate


async def test_an_order_is_answered_with_what_it_led_to(autojump_clock: MockClock) -> None:
    async with world() as here:
        agent = here.agent(features=TAKES_ORDERS)

        def answer() -> None:
            operate = asked(agent)
            assert operate.order == Unload()
            said = Answer(operate.id, {"phase": "draining", "more": 1}, None, 200)
            agent.connection.questions.answer(operate.id, said)

        name = agent.connection.id
        status, text = await meanwhile(lambda: ask(here, "POST", f"{name}/unload"), answer)
        assert status == 200
        (outcome,) = json.loads(text)["agents"]
        assert (outcome["id"], outcome["phase"], outcome["problem"]) == (name, "draining", None)


async def test_an_agent_that_does_not_answer_is_not_waited_for_for_ever(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent(features=TAKES_ORDERS)
        began_s = trio.current_time()
        status, text = await ask(here, "POST", f"{agent.connection.id}/restart_engine")
        assert status == 504
        assert "no answer within 10 s: it may carry it out yet" in text
        status, text = await ask(here, "GET", f"{agent.connection.id}/logs", "wait_ms=2000")
        assert status == 504
        assert "sent no lines within 7 s: it is busy, or its link is slow" in text
        assert trio.current_time() - began_s == pytest.approx(17)


async def test_an_agent_that_is_lost_meanwhile_is_said_to_be(autojump_clock: MockClock) -> None:
    async with world() as here:
        for method, path in (("POST", "load"), ("GET", "logs")):
            other = here.agent(features=TAKES_ORDERS)
            status, text = await meanwhile(
                lambda method=method, path=path, other=other: ask(  # type: ignore[misc]
                    here, method, f"{other.connection.id}/{path}"
                ),
                other.connection.close,
            )
            assert status == 502
            assert "disconnected" in text


async def test_agents_that_take_no_orders_are_asked_nothing(autojump_clock: MockClock) -> None:
    async with world() as here:
        for agent, words in (
            (here.agent(kind=PADDLER), "it is Paddler's agent"),
            (here.agent(), "it is of an older version"),
        ):
            list(agent.received())
            for method, path in (("POST", "unload"), ("GET", "logs")):
                status, text = await ask(here, method, f"{agent.connection.id}/{path}")
                assert status == 501
                assert words in text
            assert list(agent.received()) == []


async def test_readers_are_bounded_and_a_page_is_a_strangers(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_routes, "MAX_READERS", 0)
    async with world() as here:
        agent = here.agent(features=TAKES_ORDERS)
        status, text = await ask(here, "GET", f"{agent.connection.id}/logs")
        assert (status, "clients read logs already" in text) == (503, True)
        monkeypatch.setattr(order_routes, "MAX_READERS", 1)

        def answer() -> None:
            operate = asked(agent)
            assert operate.order == ReadLog(source="engine", lines=3, after=7, life="x", wait_ms=5)
            line = {"n": 8, "time": "now", "level": "error", "text": "a\x1b[31m", "else": 1}
            page = {"lines": [line, "no line"], "last": 8, "life": "x", "else": 2}
            agent.connection.questions.answer(operate.id, Answer(operate.id, page, None, 200))

        query = "source=engine&lines=3&after=7&life=x&wait_ms=5"
        status, text = await meanwhile(
            lambda: ask(here, "GET", f"{agent.connection.id}/logs", query), answer
        )
        assert status == 200
        shown = {"n": 8, "time": "now", "level": "error", "text": "a\\x1b[31m"}
        assert json.loads(text) == {"lines": [shown], "last": 8, "missed": 0, "life": "x"}


@pytest.mark.parametrize(
    "query",
    [f"wait_ms={MAX_LOG_WAIT_MS + 1}", "lines=0", "lines=1&lines=2", "source=x", "after=1e3"],
)
async def test_a_query_beyond_its_limits_is_refused(autojump_clock: MockClock, query: str) -> None:
    async with world() as here:
        agent = here.agent(features=TAKES_ORDERS)
        status, text = await ask(here, "GET", f"{agent.connection.id}/logs", query)
        assert status == 400
        assert query.partition("=")[0] in text
