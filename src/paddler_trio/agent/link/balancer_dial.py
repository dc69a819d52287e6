"""Dialling the balancer, with TLS or without, and what went wrong with it in words."""

from __future__ import annotations

import os
import ssl

import trio

from paddler_trio.errors import LinkError, leaves
from paddler_trio.net.tls.address import BalancerAddress
from paddler_trio.net.tls.client_errors import tls_error_in, tls_problem
from paddler_trio.net.tls.client_tls import ClientTls


async def dial(address: BalancerAddress, tls: ClientTls) -> trio.abc.Stream:
    """Return a stream to the balancer. With TLS the handshake is over, and the balancer is
    verified: what is written then goes to no one else. The files of ``tls`` are read for each
    dialling.

    Errors:
      OSError: no connection.
      LinkError: no TLS, or not the balancer that was meant.
      ConfigurationError: a file of ``tls`` cannot be used.
    """
    if not address.is_tls:
        return await _connected(address)
    context = await trio.to_thread.run_sync(tls.context)
    stream = await _connected(address)
    # compatible with HTTPS: a WebSocket has a goodbye of its own, so closing waits for nothing
    encrypted = trio.SSLStream(stream, context, server_hostname=address.host, https_compatible=True)
    try:
        await encrypted.do_handshake()
    except (trio.BrokenResourceError, ssl.SSLError) as error:
        await trio.aclose_forcefully(stream)
        problem = tls_error_in(error)
        if problem is None:
            raise
        raise LinkError(tls_problem(problem, address)) from error
    except BaseException:
        with trio.CancelScope(shield=True):  # nothing in it waits
            await trio.aclose_forcefully(stream)
        raise
    return encrypted


async def _connected(address: BalancerAddress) -> trio.SocketStream:
    """Return a connected stream; OSError with what the system said of each address that the host
    has: Trio's own text leaves that to its cause."""
    try:
        return await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        if not isinstance(error.__cause__, BaseExceptionGroup):
            raise
        said = (
            os.strerror(each.errno) if isinstance(each, OSError) and each.errno else str(each)
            for each in leaves(error.__cause__)
        )
        raise OSError(f"{error}: {', '.join(dict.fromkeys(said))}") from error
