"""TLS for large bodies: records are decrypted as many at a time as have arrived, into their place.

``trio.SSLStream`` hands out one record of 16 KiB with each call, after one or two reads of the
socket. That took more than half of the processor time of a download over HTTPS.

Reads and writes of a stream that is a socket, without Trio's stream in between.

``trio.SocketStream`` tries to read before it waits, though what comes token by token is awaited
more often than not, and lets other tasks run after each write that the system took at once. Either
costs as much as all else that is done with a small piece. Other streams, TLS for one, are used as
they are.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import attrs
import trio

RECEIVE_BYTES: Final = 256 * 1024


@attrs.define(eq=False)
class TlsStream(trio.abc.Stream):
    """A client's end of a connection; make it with :meth:`open`. One task uses it at a time.

    A server that ends without a goodbye has ended: HTTP's own framing shows what is missing.
    Errors: ssl.SSLError, and those of the transport.
    """

    _transport: trio.SocketStream
    _incoming: ssl.MemoryBIO
    _outgoing: ssl.MemoryBIO
    _tls: ssl.SSLObject
    _arrived: memoryview = attrs.field(init=False)
    """Space for what arrives at once, used again and again."""
    _broken: ssl.SSLError | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._arrived = memoryview(bytearray(RECEIVE_BYTES))

    @classmethod
    async def open(
        cls, transport: trio.SocketStream, context: ssl.SSLContext, host: str
    ) -> TlsStream:
        """Shake hands with ``host``; what its certificate must be, ``context`` says."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname=host)
        stream = cls(transport, incoming, outgoing, tls)
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                await stream._flush()
                await stream._fill()
            except ssl.SSLError:
                with suppress(trio.BrokenResourceError):
                    await stream._flush()  # the alert says why
                raise
            else:
                await stream._flush()
                return stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        await self._flush()

    async def wait_send_all_might_not_block(self) -> None:
        await self._transport.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        space = memoryview(bytearray(RECEIVE_BYTES if max_bytes is None else max_bytes))
        return bytes(space[: await self.receive_into(space)])

    async def receive_into(self, space: memoryview) -> int:
        """Write what has arrived to the beginning of ``space``; returns how many bytes, 0 at the
        end. Waits until there is something. Nothing is lost if it is cancelled."""
        await trio.lowlevel.checkpoint()
        if self._broken is not None:
            raise self._broken
        while True:
            await self._flush()  # an answer to new keys, also of the call before
            count, has_ended = self._decrypted(space)
            if count or has_ended:
                return count
            await self._flush()
            await self._fill()

    def _decrypted(self, space: memoryview) -> tuple[int, bool]:
        # the type hints of the library know no buffers but bytearrays
        read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment]
        count = 0
        try:
            while count < len(space):
                size_bytes = read(len(space) - count, space[count:])
                if size_bytes == 0:
                    return count, True
                count += size_bytes
        except ssl.SSLWantReadError:
            return count, False  # the rest of a record is still to arrive
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return count, True
        except ssl.SSLError as error:
            if not count:
                raise
            self._broken = error  # what came before it is good
        return count, False

    async def aclose(self) -> None:
        """Without a goodbye: nobody waits for one."""
        await self._transport.aclose()

    async def _fill(self) -> None:
        count = await self._transport.socket.recv_into(self._arrived)
        if count:
            self._incoming.write(self._arrived[:count])
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._transport.send_all(self._outgoing.read())


async def read_some(stream: trio.abc.Stream, max_bytes: int) -> bytes:
    """The next bytes, empty at the end: waits first, then reads.

    Errors: OSError, trio.BrokenResourceError, trio.ClosedResourceError, and those of TLS.
    """
    if not isinstance(stream, trio.SocketStream):
        return bytes(await stream.receive_some(max_bytes))
    while True:
        await trio.lowlevel.wait_readable(stream.socket)
        try:
            return os.read(stream.socket.fileno(), max_bytes)
        except BlockingIOError:
            continue  # somebody's checksum was wrong, or the like


async def write_all(stream: trio.abc.Stream, data: bytes) -> None:
    """Write all of it: at once what the system takes at once, which is no checkpoint then.

    Errors: OSError, trio.BrokenResourceError, trio.ClosedResourceError, and those of TLS.
    """
    left = memoryview(data)
    if isinstance(stream, trio.SocketStream):
        with suppress(BlockingIOError):
            left = left[os.write(stream.socket.fileno(), left) :]
    if left:
        await stream.send_all(left)
