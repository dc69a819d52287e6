"""Opening a connection to an upstream server, with TLS or without, and what went wrong in words."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final

import attrs
import trio

from paddler_trio.net.client.upstream_address import UpstreamAddress, tls_cause

DIAL_ERRORS = (OSError, UnicodeError, ssl.SSLError, trio.BrokenResourceError)
"""What :func:`dial_upstream` raises; a name that cannot be encoded is a UnicodeError."""


async def dial_upstream(address: UpstreamAddress, tls: ssl.SSLContext | None) -> trio.abc.Stream:
    """A stream to the server; with ``tls`` the handshake is over, and the server is verified."""
    stream = await trio.open_tcp_stream(address.host, address.port)
    if tls is None:
        return stream
    # compatible with HTTPS: the framing of HTTP says where an answer ends, not a goodbye of TLS
    encrypted = trio.SSLStream(stream, tls, server_hostname=address.host, https_compatible=True)
    try:
        await encrypted.do_handshake()
    except BaseException:
        with trio.CancelScope(shield=True):  # nothing in it waits
            await trio.aclose_forcefully(stream)
        raise
    return encrypted


def dial_cause(error: BaseException, address: UpstreamAddress) -> str:
    """Return what TLS objected to, else the operating system's text if it was asked, else the
    library's.
    """
    cause = tls_cause(error, address)
    if cause is not None:
        return cause
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, BaseExceptionGroup):
            seen = seen.exceptions[0]
        elif isinstance(seen, OSError) and seen.strerror:
            is_name = isinstance(seen, socket.gaierror)
            return seen.strerror if is_name or not seen.errno else os.strerror(seen.errno)
        else:
            seen = seen.__cause__ or seen.__context__
    return str(error) or type(error).__name__


CONNECT_S: Final = 3.0


@attrs.frozen(kw_only=True)
class UpstreamTimeouts:
    """Seconds, each over zero; ``math.inf`` waits for ever.

    Args:
      connect_s: until there is a connection, name resolution and TLS included.
      first_byte_s: from the end of the request to the end of the answer's head.
      idle_s: between two reads of the body, and until a piece of the request's body is taken.
      kept_s: how long a connection stays open without a request. llama-server closes after five.
    """

    connect_s: float = CONNECT_S
    first_byte_s: float = 600.0
    idle_s: float = 120.0
    kept_s: float = 3.0
