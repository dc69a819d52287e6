"""A bug that an agent's frame meets ends that agent, and is logged as what it is."""

from __future__ import annotations

import logging

import pytest
import trio
import trio_websocket
from dispatch_world import heard, world
from http_world import serving

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.balancer.agents.agent_frames import AgentFrame, decode, take_step
from paddler_trio.balancer.agents.agent_socket import AgentSocket
from paddler_trio.errors import WireError
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.wire.paddler.messages import RegisterAgent, render, response_line
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

    async def serve(exchange: Exchange, params: Params) -> None:
        await agents.serve(exchange, params["agent_id"])

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


def step_of(result: str) -> AgentFrame:
    return decode(
        f'{{"Trio":{{"Step":[{{"id":"1.1","tokens":[1],"results":[{result}]}}]}}}}',
        is_extended=True,
    )


@pytest.mark.parametrize(
    "result", [r'{"ContentToken":"half a pair: \ud800"}', r'{"SamplerError":"\udc00"}']
)
async def test_a_text_that_no_client_can_be_sent_ends_its_request_alone(result: str) -> None:
    """It would fail where it is rendered: on a WebSocket, with all other requests of its client."""
    async with world() as here:
        agent = here.agent(slots=2)
        broken, other = here.submit("broken"), here.submit("other")
        frame = step_of(result)
        assert isinstance(frame.message, dict)
        with pytest.raises(WireError):
            take_step(agent.connection, frame.message["Step"], is_escaped=frame.is_escaped)
        assert broken.failure is not None
        assert broken.failure.code == 502
        assert broken.failure.description.startswith("The agent sent a malformed frame: ")
        assert not other.is_over
        here.dispatcher.leave(agent.connection)
        other.stop()


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
async def test_what_is_no_number_is_null_for_clients(number: str) -> None:
    async with world() as here:
        agent = here.agent()
        request = here.submit()
        frame = step_of(f'{{"Progress":{{"processed":{number},"ms":0.5}}}}')
        assert isinstance(frame.message, dict)
        take_step(agent.connection, frame.message["Step"], is_escaped=frame.is_escaped)
        step = request.outbox.receive_nowait()
        line = response_line(None, "r", {step.family: step.results[0]})
        assert line.endswith(b'{"Progress":{"processed":null,"ms":0.5}}}}}')
        agent.says("1.1", done=True)


async def test_texts_of_every_language_are_results() -> None:
    async with world() as here:
        agent = here.agent()
        request = here.submit()
        frame = step_of(r'{"ContentToken":"é\u00e9\ud83d\ude00"},{"Done":{"usage":{}}}')
        assert frame.is_escaped
        assert isinstance(frame.message, dict)
        take_step(agent.connection, frame.message["Step"], is_escaped=frame.is_escaped)
        assert await heard(request) == ("éé\U0001f600", None)
