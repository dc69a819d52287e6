"""Dialling a tunnel at the balancer's port, and the frames in it, one after the other."""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs
import trio

from paddler_trio.agent.balancer_dial import dial
from paddler_trio.errors import LinkError
from paddler_trio.tls.address import BalancerAddress
from paddler_trio.tls.client_tls import ClientTls
from paddler_trio.wire.trio.tunnel_frames import FrameReader, Kind
from paddler_trio.wire.trio.upstream_messages import TUNNEL_PATH, TUNNEL_PROTOCOL

RECEIVE_BYTES: Final = 65_536
MAX_ANSWER_BYTES: Final = 16_384


@attrs.define(eq=False)
class AgentTunnel:
    """The agent's end of a tunnel; one task receives."""

    stream: trio.abc.Stream
    _reader: FrameReader = attrs.field(factory=FrameReader, init=False)
    _frames: deque[tuple[Kind, bytes]] = attrs.field(factory=deque, init=False)

    def __repr__(self) -> str:
        return f"<AgentTunnel with {len(self._frames)} frames unread>"

    async def wait_frame(self) -> bool:
        """Wait for the next frame and leave it where it is; False at the end, whatever ended it.

        Errors:
          WireError: what came are no frames.
        """
        while not self._frames:
            try:
                data = await self.stream.receive_some(RECEIVE_BYTES)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                return False
            if not data:
                return False
            self.feed(bytes(data))
        return True

    async def next_frame(self) -> tuple[Kind, bytes] | None:
        """None at the end; as `wait_frame`."""
        return self._frames.popleft() if await self.wait_frame() else None

    def frame_here(self) -> tuple[Kind, bytes] | None:
        """The next one, if it has come already."""
        return self._frames.popleft() if self._frames else None

    def feed(self, data: bytes) -> None:
        """Bytes that were received; WireError."""
        self._frames.extend(self._reader.feed(data))

    async def send(self, frames: bytes) -> None:
        """LinkError if the balancer has closed it."""
        try:
            await self.stream.send_all(frames)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise LinkError("the balancer closed the tunnel") from error


async def dial_tunnel(
    address: BalancerAddress, tls: ClientTls, secret: str, authorization: bytes | None
) -> AgentTunnel:
    """Dial, and ask for the tunnel of this secret; the caller closes its stream.

    Errors:
      OSError: no connection.
      LinkError: no TLS, or the balancer refused.
      ConfigurationError: a file of ``tls`` cannot be used.
    """
    stream = await dial(address, tls)
    try:
        await stream.send_all(_upgrade(address, secret, authorization))
        answer = b""
        while b"\r\n\r\n" not in answer:  # behind it there may be a request already
            data = await stream.receive_some(RECEIVE_BYTES)
            if not data:
                raise LinkError("the balancer closed the tunnel before it was agreed on")
            if len(answer) > MAX_ANSWER_BYTES:
                raise LinkError(f"no answer within {MAX_ANSWER_BYTES} bytes: this is no balancer")
            answer += data
        head, _, rest = answer.partition(b"\r\n\r\n")
        status, _, _ = head.partition(b"\r\n")
        if not status.startswith(b"HTTP/1.1 101"):
            what = status.decode("latin-1")[:80]
            raise LinkError(f"the balancer refused a tunnel: {what} {_text(rest)}".rstrip())
        tunnel = AgentTunnel(stream)
        tunnel.feed(rest)
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        await trio.aclose_forcefully(stream)
        raise LinkError("the balancer closed the tunnel before it was agreed on") from error
    except BaseException:
        with trio.CancelScope(shield=True):  # nothing in it waits
            await trio.aclose_forcefully(stream)
        raise
    return tunnel


def _upgrade(address: BalancerAddress, secret: str, authorization: bytes | None) -> bytes:
    lines = [
        f"GET {TUNNEL_PATH}{secret} HTTP/1.1".encode(),
        b"Host: " + address.authority.encode(),
        b"Connection: upgrade",
        b"Upgrade: " + TUNNEL_PROTOCOL.encode(),
    ]
    if authorization is not None:
        lines.append(b"Authorization: " + authorization)
    return b"\r\n".join([*lines, b"", b""])


def _text(body: bytes) -> str:
    return body[:200].decode("utf-8", "replace").replace("\n", " ")
