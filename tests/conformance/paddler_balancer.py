"""A Paddler 4.1 balancer's agent socket, in the hands of a test.

It accepts without a subprotocol, says its version, and then only what the test tells it to say.
Every frame of an agent is kept with the moment it came; results are handed out request by request.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import attrs
import trio
import trio_websocket
from wsproto.utilities import LocalProtocolError

Json: TypeAlias = Any  # frames are looked into freely; their shape is what is being tested

PATIENCE_S = 60.0
"""Longer than an agent takes to start or to load the bundled model."""


@attrs.define(eq=False)
class AgentLink:
    """One connection of an agent. ``received`` are its frames, ``times_s`` when they came."""

    agent_id: str
    offered: list[str]
    """The subprotocols it offered."""
    socket: trio_websocket.WebSocketConnection
    stream: trio.SocketStream
    pause_s: float = attrs.field(default=0.0, init=False)
    """After every frame that is read."""
    received: list[Json] = attrs.field(factory=list, init=False)
    times_s: list[float] = attrs.field(factory=list, init=False)
    is_closed: bool = attrs.field(default=False, init=False)
    _news: trio.Condition = attrs.field(factory=trio.Condition, init=False)

    # -------------------------------------------------------------- speaking

    async def say(self, frame: Json) -> None:
        await self.socket.send_message(frame if isinstance(frame, str) else json.dumps(frame))

    async def set_state(self, state: Json) -> None:
        await self.say({"Notification": {"SetState": {"desired_state": state}}})

    async def ask(self, request_id: str, request: Json) -> None:
        await self.say({"Request": {"id": request_id, "request": request}})

    async def stop(self, request_id: str) -> None:
        await self.say({"Notification": {"StopRespondingTo": request_id}})

    async def crash(self) -> None:
        """Drop the connection without a word."""
        await trio.aclose_forcefully(self.stream)

    # ------------------------------------------------------------- listening

    def results(self, request_id: str) -> list[Json]:
        """The payloads of all responses to this request so far."""
        return [
            frame["Response"]["response"]
            for frame in self.received
            if "Response" in frame and frame["Response"]["request_id"] == request_id
        ]

    def statuses(self) -> list[Json]:
        """All status snapshots so far, the one of the registration first."""
        found = []
        for frame in self.received:
            notification = frame.get("Notification")
            if isinstance(notification, dict):
                (body,) = notification.values()
                found.append(body["slot_aggregated_status_snapshot"])
        return found

    async def wait(self, is_so: Callable[[AgentLink], bool], what: str) -> None:
        """Until the frames received so far are as wanted."""
        with trio.move_on_after(PATIENCE_S):
            async with self._news:
                while not is_so(self):
                    assert not self.is_closed, f"the agent left before this was so: {what}"
                    await self._news.wait()
                return
        raise AssertionError(f"not so: {what}; last frames: {self.received[-3:]}")

    async def wait_status(self, is_so: Callable[[Json], bool], what: str) -> Json:
        """The newest status, once it is as wanted."""
        await self.wait(lambda link: bool(link.statuses()) and is_so(link.statuses()[-1]), what)
        return self.statuses()[-1]

    async def wait_serving(self, slots: int) -> Json:
        return await self.wait_status(lambda s: s["slots_total"] == slots, f"{slots} slots")

    async def wait_results(self, request_id: str, number: int) -> list[Json]:
        """At least so many results of a request."""
        await self.wait(lambda link: len(link.results(request_id)) >= number, f"{number} results")
        return self.results(request_id)

    async def wait_answer(self, request_id: str) -> list[Json]:
        """All results of a generation, once the one that ends it has come."""
        await self.wait(
            lambda link: any(ends(result) for result in link.results(request_id)),
            f"the ending of {request_id}",
        )
        return [result["GeneratedToken"] for result in self.results(request_id)]

    async def wait_closed(self) -> None:
        with trio.fail_after(PATIENCE_S):
            async with self._news:
                while not self.is_closed:
                    await self._news.wait()

    async def forward(self, request_id: str, pause_s: float) -> list[Json]:
        """What the client of a request hears: one result after the other, each taking so long; and
        nothing any more from the moment the agent deregisters, as with a 4.1 balancer."""
        heard: list[Json] = []
        while not (heard and ends(heard[-1])) and not self.has_deregistered:
            await trio.sleep(pause_s)
            results = self.results(request_id)
            if len(results) > len(heard) and not self.has_deregistered:
                heard.append(results[len(heard)])
        return heard

    @property
    def has_deregistered(self) -> bool:
        return self.is_closed or {"Notification": "DeregisterAgent"} in self.received

    async def run_reader(self) -> None:
        try:
            while True:
                frame = json.loads(await self.socket.get_message())
                async with self._news:
                    self.received.append(frame)
                    self.times_s.append(trio.current_time())
                    self._news.notify_all()
                if frame == {"Notification": "DeregisterAgent"}:
                    await self.socket.aclose()
                await trio.sleep(self.pause_s)
        except trio_websocket.ConnectionClosed:
            async with self._news:
                self.is_closed = True
                self._news.notify_all()


def ends(response: Json) -> bool:
    """Whether a response is the last of a generation."""
    (tag,) = response["GeneratedToken"]
    return not (tag.endswith("Token") or tag.startswith(("ToolCall", "Unrecognized")))


@attrs.define(eq=False)
class PaddlerBalancer:
    """Accepts agents on a port of its own."""

    port: int
    _links: trio.MemoryReceiveChannel[AgentLink]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def next_link(self) -> AgentLink:
        """The next connection of an agent, once it has registered."""
        with trio.fail_after(PATIENCE_S):
            link = await self._links.receive()
        await link.wait(lambda link: bool(link.received), "a registration")
        return link


@asynccontextmanager
async def paddler_balancer(subprotocol: str | None = None) -> AsyncIterator[PaddlerBalancer]:
    """Listen on loopback until the block is left. With a ``subprotocol`` it is one of ours."""
    made, links = trio.open_memory_channel[AgentLink](16)

    async def serve(stream: trio.SocketStream) -> None:
        try:
            async with trio.open_nursery() as nursery:
                request = await trio_websocket.wrap_server_stream(nursery, stream)
                socket = await request.accept(subprotocol=subprotocol)  # a 4.1 balancer has none
                agent_id = request.path.rpartition("/")[2]
                link = AgentLink(agent_id, list(request.proposed_subprotocols), socket, stream)
                await link.say({"Notification": {"Version": {"version": "4.1.0"}}})
                made.send_nowait(link)
                await link.run_reader()
        except* LocalProtocolError:
            pass  # trio-websocket answered a ping that came while it was closing

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(trio.serve_listeners, serve, [listener])
        yield PaddlerBalancer(listener.socket.getsockname()[1], links)
        nursery.cancel_scope.cancel()
