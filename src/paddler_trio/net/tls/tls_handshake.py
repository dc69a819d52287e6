"""The first step of a connection with TLS: its handshake, bounded in bytes, pieces and threads.

A client that never speaks costs what any connection does: OpenSSL's part begins with the first
byte. The steps run in a few threads, because a signature takes milliseconds with some keys. Whoever
comes with plain HTTP is answered in plain HTTP.
"""

from __future__ import annotations

from typing import Final

import trio

from paddler_trio.net.server.asgi import TEXT_PLAIN
from paddler_trio.net.tls.server_tls import ServerTls
from paddler_trio.net.tls.tls_records import HANDSHAKE, TlsError, TlsRecords

MAX_BYTES: Final = 16_384
"""Of a handshake from the client; a chain of three certificates has a third of it. OpenSSL holds 30
KiB beside it until the end."""
MAX_PIECES: Final = 100
"""That it may come in."""
HELLO_BYTES: Final = 16_384
"""Of one read."""

_ADVICE: Final = (
    b"This port speaks HTTPS, and the request came without TLS: use https:// instead of http:// "
    b"(wss:// instead of ws://).\n"
)
PLAIN_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: %b\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%b"
) % (TEXT_PLAIN, len(_ADVICE), _ADVICE)


async def shake_hands(stream: trio.SocketStream, tls: ServerTls, data: bytes) -> TlsRecords:
    """The TLS of a connection whose first bytes are ``data``; the deadline is the caller's.

    Errors:
      TlsError: there is none, and why; an alert or a plain answer was sent.
      BrokenResourceError: the connection broke.
    """
    if data[0] != HANDSHAKE:
        await _answer_plainly(stream, data)
    records = TlsRecords(tls.context)
    await _finish(stream, records, data, tls)
    tls.handshakes += 1
    return records


async def _answer_plainly(stream: trio.SocketStream, data: bytes) -> None:
    if not data[:1].isalpha():
        raise TlsError("neither TLS nor HTTP")
    await stream.send_all(PLAIN_ANSWER)
    raise TlsError("plain HTTP on a port with TLS: use https://")


async def _finish(
    stream: trio.SocketStream, records: TlsRecords, data: bytes, tls: ServerTls
) -> None:
    size_bytes = 0
    for _ in range(MAX_PIECES):
        try:
            is_done = await trio.to_thread.run_sync(records.handshake, data, limiter=tls.turns)
        finally:
            if output := records.output():
                await stream.send_all(output)
        if is_done:
            return  # a request may have come with the last of it: that is not counted
        size_bytes += len(data)
        if size_bytes > MAX_BYTES:
            raise TlsError(f"a handshake of more than {MAX_BYTES} bytes")
        data = bytes(await stream.receive_some(HELLO_BYTES))
        if not data:
            raise TlsError("the client left in its handshake")
    raise TlsError(f"a handshake in more than {MAX_PIECES} pieces")
