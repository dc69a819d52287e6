"""A bug that an agent's frame meets ends that agent, and is logged as what it is."""

from __future__ import annotations

import logging

import pytest
import trio
import trio_websocket
from dispatch_world import world
from http_world import serving

from paddler_trio.agent.status import AgentStatus
from paddler_trio.balancer.agent_frames import take_step
from paddler_trio.balancer.agent_socket import AgentSocket
from paddler_trio.errors import WireError
from paddler_trio.http.asgi import Receive, Scope, Send
from paddler_trio.http.router import Params, Router
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.wire.paddler.messages import RegisterAgent, render
from paddler_trio.wire.trio.trio_link import SUBPROTOCOL


async def test_a_bug_has_its_traceback_and_ends_one_agent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    join = Dispatcher.join

    def fails_for_a1(self: Dispatcher, agent: AgentConnection) -> None:
        if agent.label == "a1":
            raise ZeroDivisionError("a bug")
        join(self, agent)

    monkeypatch.setattr(Dispatcher, "join", fails_for_a1)
    dispatcher = Dispatcher(DispatchLimits())
    agents = AgentSocket(dispatcher, trio.Event())

    async def serve(scope: Scope, receive: Receive, send: Send, params: Params) -> None:
        await agents.serve(scope, receive, send, params["agent_id"])

    routes = Router()
    routes.websocket("/api/v1/agent_socket/{agent_id}", serve)
    async with serving(routes) as served, trio.open_nursery() as nursery:
        dispatcher.open(agents=served.connections, requests=served.connections)
        sockets = {}
        for name in ("a2", "a1"):
            client = await served.connect()
            socket = sockets[name] = await trio_websocket.wrap_client_stream(
                nursery,
                client.stream,
                served.address,
                f"/api/v1/agent_socket/{name}",
                subprotocols=[SUBPROTOCOL],
            )
            registration = render(RegisterAgent(name, AgentStatus(1).snapshot()))
            await socket.get_message()  # the version
            await socket.send_message(registration.decode())
        with trio.fail_after(50), pytest.raises(trio_websocket.ConnectionClosed) as closed:
            await sockets["a1"].get_message()
        assert closed.value.reason is not None
        assert closed.value.reason.code == 1011
        assert [agent.label for agent in dispatcher.agents.values()] == ["a2"]
        nursery.cancel_scope.cancel()
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert "a bug" in repr(record.exc_info[1])


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        ({"id": 1}, '{"id":1}'),
        ([[]] * 100_000, ("[[]" + ",[]" * 40)[:100]),
        ({"id": 1, "tokens": ["t" * 1_000_000]}, ('{"id":1,"tokens":["' + "t" * 100)[:100]),
    ],
)
async def test_an_entry_that_is_none_is_shown_by_its_beginning(entry: object, shown: str) -> None:
    async with world() as here:
        agent = here.agent()
        with pytest.raises(WireError) as refused:
            take_step(agent.connection, [entry])
        assert str(refused.value) == f"not a step entry: {shown} @ $.Trio.Step"
