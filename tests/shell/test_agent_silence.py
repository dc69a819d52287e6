"""An agent is silent when nothing arrived from it, not when we did not look: real sockets, an agent
in a thread that goes on talking while our event loop stands still."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial

import attrs
import pytest
import structlog
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Event, Ping, Request, TextMessage

from paddler_trio.balancer.agents.agent_socket import AgentSocket
from paddler_trio.balancer.fleet.fleet_database import open_fleet_database
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.input_budget import INLINE_BYTES, InputBudget
from paddler_trio.net.server.listening import listen
from paddler_trio.net.server.router import Router
from paddler_trio.net.server.server import HttpServer
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher

pytestmark = pytest.mark.thorough

PATIENCE_S = 60
SILENCE_S = 0.4
BUSY_SILENCE_S = 1.2
"""For tests in which a busy machine, too, must let a thread say something in less time."""


def status(version: int) -> dict[str, object]:
    return {
        "desired_slots_total": 1,
        "download_current": 0,
        "download_filename": None,
        "download_indeterminate": False,
        "download_total": 0,
        "issues": [],
        "model_path": None,
        "slots_processing": 0,
        "slots_total": 1 + version % 2,  # each is news
        "state_application_status": "Fresh",
        "uses_chat_template_override": False,
        "version": version,
    }


@attrs.define
class Agent:
    """A WebSocket client without an event loop; pings are answered whatever it says."""

    address: str
    _socket: socket.socket = attrs.field(init=False)
    _protocol: WSConnection = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self.send(Request(host=self.address, target="/api/v1/agent_socket/a1"))
        while not any(isinstance(event, AcceptConnection) for event in self.hear()):
            pass
        self.say({"RegisterAgent": self._named(status(0))})

    def _named(self, snapshot: dict[str, object]) -> dict[str, object]:
        return {"name": "attic", "slot_aggregated_status_snapshot": snapshot}

    def hear(self) -> list[Event]:
        self._protocol.receive_data(self._socket.recv(65_536) or None)
        events = list(self._protocol.events())
        for event in events:
            if isinstance(event, Ping):
                self.send(event.response())
        return events

    def send(self, event: Event) -> None:
        self._socket.sendall(self._protocol.send(event))

    def say(self, notification: dict[str, object]) -> None:
        self.send(TextMessage(json.dumps({"Notification": notification})))

    def update(self, version: int) -> None:
        self.say({"UpdateAgentStatus": {"slot_aggregated_status_snapshot": status(version)}})

    def update_at_length(self, version: int) -> None:
        """A message that is decoded in a thread."""
        issue = {"ModelFileDoesNotExist": {"model_path": "/" + "x" * INLINE_BYTES}}
        snapshot = {**status(version), "issues": [issue]}
        self.say({"UpdateAgentStatus": {"slot_aggregated_status_snapshot": snapshot}})

    def update_slowly(self, version: int, *, pieces: int, pause_s: float) -> None:
        """One message, which takes its time."""
        text = json.dumps(
            {
                "Notification": {
                    "UpdateAgentStatus": {"slot_aggregated_status_snapshot": status(version)}
                }
            }
        )
        data = self._protocol.send(TextMessage(text))
        size = len(data) // pieces + 1
        for start in range(0, len(data), size):
            self._socket.sendall(data[start : start + size])
            time.sleep(pause_s)

    def close(self) -> None:
        self._socket.close()


@contextmanager
def beside(work: partial[None]) -> Iterator[None]:
    """``work`` in a thread, which has ended when the block is left."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@asynccontextmanager
async def balancer(
    silence_s: float = SILENCE_S,
) -> AsyncIterator[tuple[str, Dispatcher, InputBudget]]:
    dispatcher = Dispatcher(DispatchLimits())
    states = FleetKeeper(open_fleet_database("memory://"), dispatcher)
    agents = AgentSocket(dispatcher, trio.Event(), silence_s=silence_s)

    async def serve(exchange: Exchange, params: Params) -> None:
        await agents.serve(exchange, params["agent_id"])

    routes = Router()
    routes.websocket("/api/v1/agent_socket/{agent_id}", serve)
    budget = InputBudget()
    server = HttpServer(routes, name="test", budget=budget)
    sockets = listen("127.0.0.1:0")
    with trio.fail_after(PATIENCE_S):
        await states.load()
        async with trio.open_nursery() as nursery:
            dispatcher.open(agents=nursery, requests=nursery)
            (address,) = await nursery.start(partial(server.serve, sockets, connections=nursery))
            yield address, dispatcher, budget
            nursery.cancel_scope.cancel()
            server.cut_all()


async def version_reaches(dispatcher: Dispatcher, version: int) -> bool:
    """True when the agent was heard to say so, False when it is taken for gone first."""
    while True:
        ordinal = dispatcher.agents_changed.ordinal
        if not dispatcher.agents:
            return False
        (agent,) = dispatcher.agents.values()
        if agent.status.version >= version:
            return True
        await dispatcher.agents_changed.wait_beyond(ordinal)


@asynccontextmanager
async def dialled(address: str, dispatcher: Dispatcher) -> AsyncIterator[Agent]:
    with closing(await trio.to_thread.run_sync(Agent, address)) as agent:
        while not dispatcher.agents:
            await dispatcher.agents_changed.wait_beyond(dispatcher.agents_changed.ordinal)
        yield agent


def keep_talking(agent: Agent, versions: range, pause_s: float) -> None:
    for version in versions:
        agent.update(version)
        time.sleep(pause_s)


async def test_a_stall_of_our_own_is_nobodys_silence() -> None:
    async with (
        balancer(BUSY_SILENCE_S) as (address, dispatcher, _),
        dialled(address, dispatcher) as agent,
    ):
        for first in (1, 21):
            versions = range(first, first + 20)
            with beside(partial(keep_talking, agent, versions, BUSY_SILENCE_S / 10)):
                time.sleep(BUSY_SILENCE_S * 1.5)  # noqa: ASYNC251  # the event loop stands still
                assert await version_reaches(dispatcher, versions[-1])


async def test_a_message_that_takes_long_to_arrive_is_no_silence() -> None:
    async with (
        balancer(BUSY_SILENCE_S) as (address, dispatcher, _),
        dialled(address, dispatcher) as agent,
    ):
        slowly = partial(agent.update_slowly, 7, pieces=30, pause_s=BUSY_SILENCE_S / 12)
        await trio.to_thread.run_sync(slowly)
        assert await version_reaches(dispatcher, 7)


async def test_a_message_that_takes_long_to_decode_is_no_silence() -> None:
    async with (
        balancer(BUSY_SILENCE_S) as (address, dispatcher, budget),
        trio.open_nursery() as nursery,
        dialled(address, dispatcher) as agent,
    ):
        is_busy, goes_on = threading.Event(), threading.Event()

        def keep_busy() -> None:
            is_busy.set()
            assert goes_on.wait(PATIENCE_S)

        nursery.start_soon(partial(budget.thread_of(1.0).run, keep_busy, client="another"))
        assert await trio.to_thread.run_sync(is_busy.wait, PATIENCE_S)
        await trio.to_thread.run_sync(agent.update_at_length, 7)
        with trio.move_on_after(3 * BUSY_SILENCE_S):
            assert not await version_reaches(dispatcher, 7), "it was decoded beside another"
            raise AssertionError("it was taken for silent")
        goes_on.set()
        assert await version_reaches(dispatcher, 7)


async def test_an_agent_that_only_answers_pings_is_gone() -> None:
    async with balancer() as (address, dispatcher, _), dialled(address, dispatcher):
        while dispatcher.agents:
            await dispatcher.agents_changed.wait_beyond(dispatcher.agents_changed.ordinal)


async def test_the_log_names_an_agent_that_is_silent() -> None:
    with structlog.testing.capture_logs() as records:
        async with balancer() as (address, dispatcher, _), dialled(address, dispatcher):
            while dispatcher.agents:
                await dispatcher.agents_changed.wait_beyond(dispatcher.agents_changed.ordinal)
    (said,) = (each for each in records if each["event"] == "agent is silent: gone")
    assert (said["agent"], said["agent_id"]) == ("attic", "a1")


async def test_an_agent_that_was_silent_during_a_stall_is_gone_after_it() -> None:
    async with balancer() as (address, dispatcher, _), dialled(address, dispatcher):
        time.sleep(SILENCE_S * 2)  # noqa: ASYNC251  # the event loop stands still
        while dispatcher.agents:
            await dispatcher.agents_changed.wait_beyond(dispatcher.agents_changed.ordinal)
