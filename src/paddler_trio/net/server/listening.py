"""Binding the sockets a server listens on, before any task exists.

A port in use is then one plain error with the address in it, not an exception group out of a
half-started tree.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Iterable, Sequence

import structlog

from paddler_trio.errors import ConfigurationError
from paddler_trio.system.config import split_address
from paddler_trio.system.kernel.socket_options import watch_silence

log = structlog.get_logger("balancer")

KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 30, 10, 3


def listen(
    address: str, *, backlog: int = 1024, user_timeout_ms: int = 20_000
) -> list[socket.socket]:
    """Bind ``host:port`` and listen; a name with several addresses gives several sockets.

    Accepted connections inherit the options: no Nagle delay, keep-alive probes, and an end after
    ``user_timeout_ms`` in which nothing we sent was acknowledged.

    Args:
      address: ``127.0.0.1:8061``, ``[::1]:8061`` or ``localhost:0``; port 0 lets the system
        choose, the same port for every address.

    Errors:
      ConfigurationError: not an address, not resolvable, in use, or not permitted.
    """
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {address}: {error.strerror}") from error
    sockets: list[socket.socket] = []
    unavailable: OSError | None = None
    for family, _, _, _, sockaddr in dict.fromkeys(found):
        bound_port = sockets[0].getsockname()[1] if sockets else port
        try:
            sockets.append(_bind(family, (sockaddr[0], bound_port, *sockaddr[2:]), backlog))
        except OSError as error:
            # A name may have an address this machine has not, such as ::1 without IPv6.
            if error.errno in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                unavailable = error
                continue
            _close_all(sockets)
            raise _cannot_listen(address, error) from error
    if unavailable is not None and not sockets:
        raise _cannot_listen(address, unavailable) from unavailable
    for sock in sockets:
        _set_options(sock, user_timeout_ms)
    return sockets


def adopt(sockets: Iterable[socket.socket], *, user_timeout_ms: int = 20_000) -> None:
    """Set on sockets that another process bound what :func:`listen` sets."""
    for sock in sockets:
        _set_options(sock, user_timeout_ms)


def bound_address(sock: socket.socket) -> str:
    """Return the address of ``sock`` as ``host:port``, with the port that the system chose."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind(family: int, sockaddr: tuple[str | int, ...], backlog: int) -> socket.socket:
    return socket.create_server(sockaddr, family=family, backlog=backlog)


def _set_options(sock: socket.socket, user_timeout_ms: int) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    watch_silence(
        sock,
        idle_s=KEEPALIVE_IDLE_S,
        interval_s=KEEPALIVE_INTERVAL_S,
        probes=KEEPALIVE_PROBES,
        unacknowledged_ms=user_timeout_ms,
    )


def _cannot_listen(address: str, error: OSError) -> ConfigurationError:
    advice = {
        errno.EADDRINUSE: "address already in use; stop the other process or choose another port",
        errno.EACCES: "permission denied; choose a port of 1024 or above",
        errno.EADDRNOTAVAIL: "this machine has no such address",
    }
    reason = advice.get(error.errno or 0, os.strerror(error.errno or 0).lower())
    return ConfigurationError(f"cannot listen on {address}: {reason}")


def _close_all(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def warn_of_plain_ports(sockets: Sequence[socket.socket]) -> None:
    """Warn of ports without TLS that other machines reach: they can be read and changed."""
    if exposed := beyond_loopback(sockets):
        log.warning(
            "PORTS WITHOUT TLS: keys, prompts and answers cross the network as they are; give "
            "--tls-cert and --tls-key, or bind to 127.0.0.1 behind a proxy that has TLS",
            addresses=exposed,
        )


def beyond_loopback(sockets: Sequence[socket.socket]) -> list[str]:
    """The addresses of ``sockets`` that other machines may reach."""
    return [
        bound_address(each)
        for each in sockets
        if not ipaddress.ip_address(each.getsockname()[0].partition("%")[0]).is_loopback
    ]
