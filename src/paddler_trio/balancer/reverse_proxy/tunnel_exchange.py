"""One exchange with a server, through a tunnel of the agent in front of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from paddler_trio.balancer.reverse_proxy.answer_writer import AnswerWriter
from paddler_trio.errors import LinkError, WireError
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.tunnels import Tunnel
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

SEND_BYTES = 1_048_576
"""Of a body, at once."""


@attrs.frozen(kw_only=True)
class ForwardedRequest:
    """What a server is sent; it may be sent again, to another one."""

    head: RequestHead
    body: bytes | bytearray = attrs.field(repr=False)

    def pieces(self, wire_id: str) -> Iterator[bytes]:
        """The frames, in pieces to be sent one after the other."""
        head = request_frame(self.head, wire_id)
        if len(self.body) <= SEND_BYTES:
            yield head + body_frames(bytes(self.body)) + end_frame()
            return
        yield head
        for start in range(0, len(self.body), SEND_BYTES):
            yield body_frames(bytes(self.body[start : start + SEND_BYTES]))
        yield end_frame()


async def exchange(
    agent: AgentConnection,
    request: ForwardedRequest,
    wire_id: str,
    answer: AnswerWriter,
    on_progress: Callable[[], None] = lambda: None,
) -> Failed | None:
    """Have the server behind ``agent`` answer; None when all of its answer was written.

    Args:
      wire_id: of the lease of its slot; empty for none.
      on_progress: called when something of the answer has come.

    Cancellation: the tunnel is closed, by which the agent knows that nobody wants the answer.

    Errors:
      ClientGoneError: the client left, or does not read.
    """
    tunnels = agent.tunnels
    assert tunnels is not None, f"{agent} stands in front of no server"
    try:
        tunnel = await tunnels.take()
    except LinkError as error:
        return Failed(kind="connect", text=str(error), may_repeat=True)
    is_whole = False
    try:
        failed = await _exchange(tunnel, agent, request.pieces(wire_id), answer, on_progress)
        is_whole = failed is None
    except (LinkError, WireError) as error:
        return Failed(kind="closed", text=str(error), may_repeat=not answer.has_begun)
    finally:
        if is_whole:
            tunnels.give_back(tunnel)
        else:
            tunnels.close(tunnel)
    return failed


async def _exchange(
    tunnel: Tunnel,
    agent: AgentConnection,
    pieces: Iterator[bytes],
    answer: AnswerWriter,
    on_progress: Callable[[], None],
) -> Failed | None:
    for piece in pieces:
        await tunnel.send(piece)
    rest: list[tuple[Kind, bytes]] = []

    def take(frames: list[tuple[Kind, bytes]]) -> bool:
        """Pieces of the body, while the client keeps up."""
        for index, (kind, payload) in enumerate(frames):
            if kind is not Kind.BODY:
                rest.extend(frames[index:])
                break
            answer.add(payload)
        on_progress()
        return answer.flush_now() and not rest

    frames = await tunnel.receive()
    while True:
        for kind, payload in frames:
            match kind:
                case Kind.BODY if answer.has_begun:
                    answer.add(payload)
                case Kind.RESPONSE if not answer.has_begun:
                    await answer.begin(read_response(payload), agent.label)
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
        on_progress()
        await answer.flush()
        if answer.has_begun and tunnel.can_pass_on:
            await tunnel.pass_on(take)
            await answer.flush()
            frames, rest = rest, []
        else:
            frames = await tunnel.receive()
