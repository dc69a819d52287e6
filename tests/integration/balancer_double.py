"""The balancer's end of agents' links, made by hand: what they sent, and frames to them.

No queue, no slots, no HTTP: a test decides what each link is sent, and sees what it reported.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import attrs
import trio
import trio_websocket

from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.codec import loads
from paddler_trio.wire.paddler.desired_state import AgentDesiredState
from paddler_trio.wire.paddler.messages import (
    DeregisterAgent,
    RegisterAgent,
    StopRespondingTo,
    UpdateAgentStatus,
    Version,
    parse_balancer_message,
    render,
)
from paddler_trio.wire.paddler.request_params import ContinueFromRawPromptParams, GbnfGrammar
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, extended_digest
from paddler_trio.wire.trio.trio_link import (
    SUBPROTOCOL,
    TAG,
    Extension,
    HandBack,
    Placement,
    Report,
    Start,
    Want,
    parse_extension,
    render_extension,
)

PATIENCE_S = 60.0


@attrs.define(eq=False)
class Stream:
    """One generation: when its tokens came, and how it ended."""

    came_s: list[float] = attrs.field(factory=list)
    ending: str | None = None

    def gaps_s(self, since_s: float, until_s: float) -> list[float]:
        """Between tokens that came one after the other in that time."""
        came = [s for s in self.came_s if since_s <= s <= until_s]
        return [after - before for before, after in pairwise(came)]


@attrs.define(eq=False)
class Link:
    """One connection of an instance."""

    id: str
    socket: trio_websocket.WebSocketConnection
    changes: Changes
    first: list[str] = attrs.field(factory=list)
    """Names of its first frames, up to the registration."""
    name: str | None = None
    placement: Placement | None = None
    is_registered: bool = False
    has_left: bool = False
    """It deregistered."""
    is_open: bool = True
    slots: list[int] = attrs.field(factory=list)
    """``slots_total`` of each status."""
    reports: list[Report] = attrs.field(factory=list)
    reported_s: list[float] = attrs.field(factory=list)
    """When each of them came."""
    streams: dict[str, Stream] = attrs.field(factory=dict)

    @property
    def report(self) -> Report:
        """The newest; one of a silent agent before the first."""
        return self.reports[-1] if self.reports else Report("", None, None, None, None, None)

    async def want(self, desired: AgentDesiredState) -> str:
        """Send this state; its digest."""
        await self.send(Want(desired, NO_EXTRAS))
        return extended_digest(desired, NO_EXTRAS)

    async def send(self, message: Extension) -> None:
        await self.socket.send_message(render_extension(message).decode())

    async def start(self, wire_id: str, *, max_tokens: int, bound: str | None = None) -> Stream:
        """Let it generate; it never ends by itself before its limit. ``bound``: see ``Start``."""
        endless = GbnfGrammar('root ::= "la " root', "root")
        work = ContinueFromRawPromptParams("Sing:", max_tokens, endless)
        stream = self.streams[wire_id] = Stream()
        await self.send(Start(wire_id, work, 7, (), bound=bound))
        return stream

    async def stop(self, wire_id: str) -> None:
        await self.socket.send_message(render(StopRespondingTo(wire_id)).decode())

    def take(self, text: str) -> None:
        if text.startswith('{"Trio":'):
            self._take_ours(loads(text))
            return
        message = parse_balancer_message(text)
        match message:
            case RegisterAgent(name, status):
                self.name, self.is_registered = name, True
                self.slots.append(status.slots_total)
                self.first.append("RegisterAgent")
            case UpdateAgentStatus(status):
                self.slots.append(status.slots_total)
            case DeregisterAgent():
                self.has_left = True

    def _take_ours(self, frame: object) -> None:
        assert isinstance(frame, dict)
        body = frame[TAG]
        if isinstance(body, dict) and "Step" in body:
            now_s = trio.current_time()
            for entry in body["Step"]:
                stream = self.streams[entry["id"]]
                stream.came_s += [now_s] * bool(entry["tokens"])
                for result in entry["results"]:
                    name = result if isinstance(result, str) else next(iter(result))
                    if "Token" not in name and name != "Progress":
                        stream.ending = name
            return
        message = parse_extension(body)
        if not self.is_registered:
            self.first.append(type(message).__name__)
        match message:
            case Placement():
                self.placement = message
            case Report():
                self.reports.append(message)
                self.reported_s.append(trio.current_time())
            case HandBack(wire_id, reason):
                self.streams[wire_id].ending = f"handed back: {reason}"


@attrs.define(eq=False)
class BalancerDouble:
    """All links, by their ids; the newest of each."""

    port: int
    links: dict[str, Link] = attrs.field(factory=dict)
    changes: Changes = attrs.field(factory=Changes)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Return when it is so; it is looked at after each frame."""
        with trio.fail_after(PATIENCE_S):
            while not is_so():
                await self.changes.wait_beyond(self.changes.ordinal)

    async def link(self, name: str) -> Link:
        """The registered one of this name."""

        def found() -> Link | None:
            return next(
                (e for e in self.links.values() if e.name == name and e.is_registered), None
            )

        await self.until(lambda: found() is not None)
        link = found()
        assert link is not None
        return link

    async def serve(self, request: trio_websocket.WebSocketRequest) -> None:
        socket = await request.accept(subprotocol=SUBPROTOCOL)
        link = Link(request.path.rpartition("/")[2], socket, self.changes)
        self.links[link.id] = link
        await socket.send_message(render(Version("4.1.0")).decode())
        try:
            while True:
                link.take(await socket.get_message())
                self.changes.notify()
                if link.has_left:
                    await socket.aclose()
        except trio_websocket.ConnectionClosed:
            link.is_open = False
            self.changes.notify()


@asynccontextmanager
async def balancer_double() -> AsyncIterator[BalancerDouble]:
    async with trio.open_nursery() as nursery:
        double = BalancerDouble(0)
        server = await nursery.start(
            partial(trio_websocket.serve_websocket, double.serve, "127.0.0.1", 0, ssl_context=None)
        )
        double.port = server.port
        yield double
        nursery.cancel_scope.cancel()
