"""One exchange with a server, through a tunnel of the agent in front of it.

Take the tunnels that agents were asked for, at ``/api/v2/tunnel/{secret}``.

The connection leaves HTTP behind: once it is answered with 101, it is the agent's tunnel, and lives
as long as the agent's link.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from typing import Final

import attrs
import trio

from paddler_trio.balancer.reverse_proxy.answer_writer import AnswerWriter
from paddler_trio.errors import LinkError, WireError
from paddler_trio.net.server.asgi import (
    ClientGoneError,
    HttpProblem,
    Upgrade,
    send_text,
)
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.tunnels import Tunnel, Tunnels
from paddler_trio.net.websocket.plain_frames import is_pings
from paddler_trio.nursery_tree.agent_connection import TUNNELS_BESIDE_SLOTS
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import SlotOwner
from paddler_trio.system.kernel.socket_options import allow_unacknowledged
from paddler_trio.wire.trio.tunnel_frames import (
    Failed,
    Kind,
    RequestHead,
    body_frames,
    end_frame,
    read_end,
    read_failed,
    read_response,
    request_frame,
)
from paddler_trio.wire.trio.upstream_messages import (
    CARRIES_FIELD,
    CARRIES_WEBSOCKETS,
    TUNNEL_PATH,
    TUNNEL_PROTOCOL,
)

SEND_BYTES = 1_048_576
"""Of a body, at once."""
MAX_WEBSOCKETS: Final = 16
"""Open at once beside the slots of one agent's server: others need tunnels, too."""
CLOSED_SIDE_S: Final = 10.0
"""For the server to say its last, once the client of a WebSocket has closed its side."""


@attrs.frozen(kw_only=True)
class ForwardedRequest:
    """Hold what a server is sent; it may be sent again, to another one."""

    head: RequestHead
    body: bytes | bytearray = attrs.field(repr=False)
    upgrade: Upgrade | None = None
    """Of a request for a WebSocket: what the client sends through it."""

    def pieces(self, wire_id: str) -> Iterator[bytes]:
        """Return the frames, in pieces to be sent one after the other."""
        head = request_frame(self.head, wire_id)
        if len(self.body) <= SEND_BYTES:
            yield head + body_frames(bytes(self.body)) + end_frame()
            return
        yield head
        for start in range(0, len(self.body), SEND_BYTES):
            yield body_frames(bytes(self.body[start : start + SEND_BYTES]))
        yield end_frame()


async def exchange_with(
    agent: SlotOwner,
    request: ForwardedRequest,
    wire_id: str,
    answer: AnswerWriter,
    on_progress: Callable[[], None] = lambda: None,
    on_tunnel: Callable[[Callable[[], None]], None] = lambda _close: None,
) -> Failed | None:
    """Have the server behind ``agent`` answer; None when all of its answer was written.

    What takes no slot has tunnels of its own: however many of those are held by clients that read
    slowly, the slots have theirs.

    Args:
      wire_id: of the lease of its slot; empty for none.
      on_progress: called when something of the answer has come; over a WebSocket in a slot, when
        something other than pings came either way.
      on_tunnel: called before anything is sent to the agent, with what closes the tunnel at once.

    Cancellation: the tunnel is closed, by which the agent knows that nobody wants the answer.

    Errors:
      ClientGoneError: the client left, or does not read.
    """
    tunnels = agent.tunnels
    assert tunnels is not None, f"{agent} stands in front of no server"
    if wire_id:
        return await _through_tunnel(
            tunnels, agent, request, wire_id, answer, on_progress, on_tunnel
        )
    if tunnels.num_beside >= TUNNELS_BESIDE_SLOTS:
        text = (
            f"{TUNNELS_BESIDE_SLOTS} requests that take no slot are under way already at the "
            f"server of {agent.label}"
        )
        return Failed(kind="full", text=text, may_repeat=True)
    tunnels.num_beside += 1
    try:
        return await _through_tunnel(tunnels, agent, request, wire_id, answer, on_progress)
    finally:
        tunnels.num_beside -= 1


async def _through_tunnel(
    tunnels: Tunnels,
    agent: SlotOwner,
    request: ForwardedRequest,
    wire_id: str,
    answer: AnswerWriter,
    on_progress: Callable[[], None],
    on_tunnel: Callable[[Callable[[], None]], None] = lambda _close: None,
) -> Failed | None:
    def close() -> None:
        tunnel.forget_unsent()
        tunnel.close()

    try:
        tunnel = await tunnels.take()
    except LinkError as error:
        return Failed(kind="connect", text=str(error), may_repeat=True)
    on_tunnel(close)
    may_stay = False
    try:
        if request.upgrade is None:
            failed = await _exchange(tunnel, agent, request.pieces(wire_id), answer, on_progress)
        elif (refusal := _refusal(tunnels, tunnel, agent, beside=not wire_id)) is not None:
            may_stay = True
            return refusal
        else:
            failed = await _exchange_both_ways(
                tunnel, agent, request, wire_id, answer, request.upgrade, on_progress
            )
        may_stay = failed is None and not answer.is_switched
    except (LinkError, WireError) as error:
        return Failed(kind="link", text=str(error), may_repeat=not answer.has_begun)
    finally:
        tunnels.websockets.discard(tunnel)
        if may_stay:
            tunnels.give_back(tunnel)
        else:
            close()
            tunnels.close(tunnel)
    return failed


def _refusal(tunnels: Tunnels, tunnel: Tunnel, agent: SlotOwner, *, beside: bool) -> Failed | None:
    """Why this tunnel carries no WebSocket; if it does, it is counted from here on. What takes no
    slot may ask another agent."""
    if not tunnel.carries_websockets:
        text = f"the agent {agent.label} is of an older version, which passes on no WebSockets"
        return Failed(kind="unable", text=text, may_repeat=beside)
    if beside:
        if len(tunnels.websockets) >= MAX_WEBSOCKETS:
            text = f"{MAX_WEBSOCKETS} WebSockets are open already at the server of {agent.label}"
            return Failed(kind="full", text=text, may_repeat=True)
        tunnels.websockets.add(tunnel)
    return None


async def _exchange_both_ways(
    tunnel: Tunnel,
    agent: SlotOwner,
    request: ForwardedRequest,
    wire_id: str,
    answer: AnswerWriter,
    upgrade: Upgrade,
    on_progress: Callable[[], None],
) -> Failed | None:
    """If the server switches, what the client sends goes through the tunnel beside the answer. The
    end of the answer ends both; the end of the client gives the answer ``CLOSED_SIDE_S``."""
    outcome: list[Failed | None] = []
    problem: LinkError | WireError | ClientGoneError | None = None
    is_heard = _is_anything if not wire_id else _is_said

    async def send() -> None:
        try:
            while data := await upgrade.take():
                await tunnel.send(body_frames(data))
                if is_heard(data):
                    on_progress()
            await tunnel.send(end_frame())
        except LinkError:
            return  # who reads the answer sees the end of the tunnel, too

    def client_closed() -> None:
        scope = nursery.cancel_scope
        scope.deadline = min(scope.deadline, trio.current_time() + CLOSED_SIDE_S)

    def switched() -> None:
        nursery.start_soon(send, name="from the client of a WebSocket")
        upgrade.on_close = client_closed
        if upgrade.is_closed:
            client_closed()

    async with trio.open_nursery() as nursery:
        try:
            pieces = request.pieces(wire_id)
            outcome.append(
                await _exchange(tunnel, agent, pieces, answer, on_progress, switched, is_heard)
            )
        except (LinkError, WireError, ClientGoneError) as error:
            problem = error  # raised below, not in the nursery's group
        nursery.cancel_scope.cancel(reason="the answer has ended")
    upgrade.on_close = None
    if answer.is_switched:
        upgrade.end()
    if problem is not None:
        raise problem
    if not outcome:
        raise ClientGoneError("the client closed its side, and the server did not end in time")
    return outcome[0]


def _is_anything(data: bytes) -> bool:
    """Beside slots pings keep open what is open."""
    return True


def _is_said(data: bytes) -> bool:
    """A slot is no place to sleep in."""
    return not is_pings(data)


async def _exchange(
    tunnel: Tunnel,
    agent: SlotOwner,
    pieces: Iterator[bytes],
    answer: AnswerWriter,
    on_progress: Callable[[], None],
    on_switch: Callable[[], None] = lambda: None,
    is_heard: Callable[[bytes], bool] = _is_anything,
) -> Failed | None:
    for piece in pieces:
        await tunnel.send(piece)
    rest: list[tuple[Kind, bytes]] = []

    def note(frames: list[tuple[Kind, bytes]]) -> None:
        if not answer.is_switched or any(
            kind is not Kind.BODY or is_heard(payload) for kind, payload in frames
        ):
            on_progress()

    def take(frames: list[tuple[Kind, bytes]]) -> bool:
        """Take pieces of the body, while the client keeps up."""
        for index, (kind, payload) in enumerate(frames):
            if kind is not Kind.BODY:
                rest.extend(frames[index:])
                break
            answer.add(payload)
        note(frames)
        return answer.flush_now() and not rest

    frames = await tunnel.receive()
    while True:
        for kind, payload in frames:
            match kind:
                case Kind.BODY if answer.has_begun:
                    answer.add(payload)
                case Kind.RESPONSE if not answer.has_begun:
                    await answer.begin(read_response(payload), agent.label)
                    if answer.is_switched:
                        on_switch()
                case Kind.END if answer.has_begun:
                    on_progress()
                    await answer.end(read_end(payload))
                    return None
                case Kind.FAILED:
                    failed = read_failed(payload)
                    return attrs.evolve(
                        failed, may_repeat=failed.may_repeat and not answer.has_begun
                    )
                case _:
                    raise WireError(f"{kind.name} is not the agent's turn @ tunnel")
        note(frames)
        await answer.flush()
        if answer.has_begun:
            await tunnel.pass_on(take)
            await answer.flush()
            frames, rest = rest, []
        else:
            frames = await tunnel.receive()


_SWITCHING = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: %b\r\n\r\n"
    % TUNNEL_PROTOCOL.encode()
)


def is_tunnel_path(path: str) -> bool:
    """``path`` is percent-decoded."""
    return path.startswith(TUNNEL_PATH)


@attrs.frozen(eq=False)
class TunnelRoute:
    """An application for the paths below ``TUNNEL_PATH``."""

    dispatcher: Dispatcher

    async def __call__(self, exchange: Exchange) -> None:
        """Take the connection over, or answer why not."""
        try:
            self._take_over(exchange)
        except HttpProblem as problem:
            await send_text(exchange.send, problem.status, problem.text)

    def _take_over(self, exchange: Exchange) -> None:
        secret = exchange.path.removeprefix(TUNNEL_PATH)
        tunnels = self._asked_for(secret)
        if tunnels is None:
            raise HttpProblem(404, "no agent was asked for this tunnel, or it came too late")
        connection = exchange.passable
        assert connection is not None, "the server passes on what is_tunnel_path holds for"
        descriptor = connection.fileno()
        if descriptor < 0:
            raise ClientGoneError("the agent closed its tunnel at once")
        if connection.unread():
            raise HttpProblem(400, "nothing is sent through a tunnel before it is answered")
        try:
            copy = socket.socket(fileno=os.dup(descriptor))
        except OSError as error:
            raise HttpProblem(503, f"no tunnel: {error.strerror}") from error
        try:
            # some 90 bytes into the empty buffer of a new connection
            copy.send(_SWITCHING)
        except OSError as error:
            copy.close()
            raise ClientGoneError("the agent closed its tunnel at once") from error
        if copy.family in (socket.AF_INET, socket.AF_INET6):
            # a server may be busy before it reads a request: its agent says when that is too long
            allow_unacknowledged(copy, 0)
        connection.release()
        carried = exchange.header(CARRIES_FIELD.lower().encode())
        is_able = carried == CARRIES_WEBSOCKETS.encode()
        if not tunnels.dialled(secret, copy, carries_websockets=is_able):
            copy.close()

    def _asked_for(self, secret: str) -> Tunnels | None:
        for agent in self.dispatcher.agents.values():
            if agent.tunnels is not None and agent.tunnels.expects(secret):
                return agent.tunnels
        return None
