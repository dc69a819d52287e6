"""A Paddler 4.1 agent that does what a test tells it to, and nothing by itself but its heartbeat.

It dials like the real one: a plain WebSocket, no subprotocol, registration first. Every frame it
receives is kept in order; requests, stops and states can be waited for one by one. It never
answers on its own, so a test decides when a token, an ending or a silence happens.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import attrs
import trio
import trio_websocket

Json: TypeAlias = Any  # frames are looked into freely; their shape is what is being tested

HEARTBEAT_S = 1.0
PATIENCE_S = 60.0
"""Longer than anything under test takes; a test that waits this long has failed."""

USAGE = {
    "prompt_tokens": 3,
    "cached_prompt_tokens": 0,
    "input_image_tokens": 0,
    "input_audio_tokens": 0,
    "content_tokens": 1,
    "reasoning_tokens": 0,
    "tool_call_tokens": 0,
    "undeterminable_tokens": 0,
}
DONE: Mapping[str, Json] = {"Done": {"usage": USAGE}}


def status_snapshot(**changes: Json) -> dict[str, Json]:
    """The status of an agent that has just started, with ``changes``."""
    return {
        "desired_slots_total": 4,
        "download_current": 0,
        "download_filename": None,
        "download_indeterminate": True,
        "download_total": 0,
        "issues": [],
        "model_path": None,
        "slots_processing": 0,
        "slots_total": 0,
        "state_application_status": "Fresh",
        "uses_chat_template_override": False,
        "version": 0,
        **changes,
    }


@attrs.define(eq=False)
class PaddlerAgent:
    """One connection of one agent. ``received`` are all frames so far, parsed, oldest first."""

    socket: trio_websocket.WebSocketConnection
    stream: trio.SocketStream
    status: dict[str, Json]
    received: list[Json] = attrs.field(factory=list, init=False)
    is_closed: bool = attrs.field(default=False, init=False)
    _news: trio.Condition = attrs.field(factory=trio.Condition, init=False)
    _looked_at: dict[str, int] = attrs.field(factory=dict, init=False)

    # -------------------------------------------------------------- speaking

    async def say(self, frame: Json) -> None:
        """Send a frame; a ``str`` goes out as it is."""
        await self.socket.send_message(frame if isinstance(frame, str) else json.dumps(frame))

    async def notify(self, notification: Json) -> None:
        await self.say({"Notification": notification})

    async def register(self, name: str | None, **changes: Json) -> None:
        self.status |= changes
        snapshot = {"name": name, "slot_aggregated_status_snapshot": self.status}
        await self.notify({"RegisterAgent": snapshot})

    async def update(self, **changes: Json) -> None:
        """Send a status with ``changes`` in it, and a higher version unless one is given."""
        self.status |= {"version": self.status["version"] + 1} | changes
        await self.notify({"UpdateAgentStatus": {"slot_aggregated_status_snapshot": self.status}})

    async def load(self, slots: int) -> None:
        """What a 4.1 agent reports while it applies a state: empty, then all its slots."""
        await self.update(slots_total=0, state_application_status="Fresh")
        await self.update(slots_total=slots, state_application_status="Applied", model_path="/m")

    async def respond(self, request_id: str, response: Json) -> None:
        envelope = {"generated_by": None, "request_id": request_id, "response": response}
        await self.say({"Response": envelope})

    async def token(self, request_id: str, text: str) -> None:
        await self.respond(request_id, {"GeneratedToken": {"ContentToken": text}})

    async def done(self, request_id: str) -> None:
        await self.respond(request_id, {"GeneratedToken": DONE})

    async def answer(self, request_id: str, text: str = "ok") -> None:
        """One token and the ending."""
        await self.token(request_id, text)
        await self.done(request_id)

    async def crash(self) -> None:
        """Drop the connection without a word."""
        await trio.aclose_forcefully(self.stream)

    # ------------------------------------------------------------- listening

    async def next_request(self) -> tuple[str, Json]:
        """The id and body of the next request not yet looked at."""
        frame = await self._next("Request", "")
        return frame["Request"]["id"], frame["Request"]["request"]

    async def next_stop(self) -> str:
        """The id in the next ``StopRespondingTo``."""
        frame = await self._next("Notification", "StopRespondingTo")
        return str(frame["Notification"]["StopRespondingTo"])

    async def next_state(self) -> Json:
        """The desired state in the next ``SetState``."""
        frame = await self._next("Notification", "SetState")
        return frame["Notification"]["SetState"]["desired_state"]

    def requests(self) -> list[str]:
        """The ids of all requests received so far."""
        return [frame["Request"]["id"] for frame in self.received if "Request" in frame]

    async def wait_closed(self) -> trio_websocket.CloseReason | None:
        """Until the balancer has ended the connection; its close frame, if it sent one."""
        with trio.fail_after(PATIENCE_S):
            async with self._news:
                while not self.is_closed:
                    await self._news.wait()
        return self.socket.closed

    async def _next(self, tag: str, notification: str) -> Json:
        key = notification or tag
        with trio.fail_after(PATIENCE_S):
            async with self._news:
                while True:
                    for place in range(self._looked_at.get(key, 0), len(self.received)):
                        frame = self.received[place]
                        if tag in frame and notification in (*frame[tag], ""):
                            self._looked_at[key] = place + 1
                            return frame
                    assert not self.is_closed, f"the link closed before a {key} came"
                    await self._news.wait()

    # ---------------------------------------------------------------- tasks

    async def run_reader(self) -> None:
        try:
            while True:
                frame = json.loads(await self.socket.get_message())
                async with self._news:
                    self.received.append(frame)
                    self._news.notify_all()
        except trio_websocket.ConnectionClosed:
            async with self._news:
                self.is_closed = True
                self._news.notify_all()

    async def run_heartbeat(self) -> None:
        """The same status again, as 4.1 agents send it every second."""
        while not self.is_closed:
            await trio.sleep(HEARTBEAT_S)
            if self.status["version"]:
                try:
                    await self.update(version=self.status["version"])
                except trio_websocket.ConnectionClosed:
                    return


@asynccontextmanager
async def dial(management: str, agent_id: str) -> AsyncIterator[PaddlerAgent]:
    """Connect without registering; leaving the block drops the connection as a crash would."""
    host, _, port = management.rpartition(":")
    async with (
        await trio.open_tcp_stream(host, int(port)) as stream,
        trio.open_nursery() as nursery,
    ):
        socket = await trio_websocket.wrap_client_stream(
            nursery,
            stream,
            management,
            f"/api/v1/agent_socket/{agent_id}",
            max_message_size=64 * 1024 * 1024,
        )
        assert socket.subprotocol is None, "a Paddler agent was answered with a subprotocol"
        agent = PaddlerAgent(socket, stream, status_snapshot())
        nursery.start_soon(agent.run_reader)
        nursery.start_soon(agent.run_heartbeat)
        yield agent
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving_agent(
    management: str, agent_id: str, *, slots: int = 1, name: str | None = None
) -> AsyncIterator[PaddlerAgent]:
    """A registered agent that has loaded the model and offers its slots."""
    async with dial(management, agent_id) as agent:
        await agent.register(agent_id if name is None else name, desired_slots_total=slots)
        await agent.next_state()
        await agent.load(slots)
        yield agent
