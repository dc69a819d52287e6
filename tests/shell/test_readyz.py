"""``/readyz``: whether a request would be answered soon, and why not."""

from __future__ import annotations

import trio
from dispatch_world import World, world

from exchanges import exchange_for
from paddler_trio.balancer.fleet.fleet_database import MemoryDatabase
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.front.inference_routes import InferenceRoutes
from paddler_trio.net.server.asgi import Message


async def asked(here: World, method: str = "GET") -> tuple[int, str]:
    """The status and the text."""
    states = FleetKeeper(MemoryDatabase(), here.dispatcher)
    routes = InferenceRoutes(here.dispatcher, states, trio.Event()).routes()
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(message)

    scope = {"type": "http", "method": method, "path": "/readyz", "headers": []}
    await routes(exchange_for(scope, receive, send))
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent).decode()


async def test_a_balancer_without_a_slot_is_not_ready() -> None:
    async with world() as here:
        assert await asked(here) == (503, "no agent has a slot: requests wait in the buffer")
        here.agent(slots=0)
        assert await asked(here, "HEAD") == (503, "")
        here.agent()
        assert await asked(here) == (200, "OK")


async def test_a_balancer_whose_agents_are_all_drained_is_not_ready() -> None:
    async with world() as here:
        here.agent(slots=0)
        one, other = here.agent().connection, here.agent().connection
        here.dispatcher.drain_agent(one, drained=True)
        assert await asked(here) == (200, "OK"), "the other takes work"
        here.dispatcher.drain_agent(other, drained=True)
        status, reason = await asked(here)
        assert status == 503
        assert "every agent that has a slot is drained" in reason
        here.dispatcher.drain_agent(one, drained=False)
        assert await asked(here) == (200, "OK")
