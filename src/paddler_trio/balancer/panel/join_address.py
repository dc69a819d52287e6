"""Tell where agents shall dial in, as seen from the browser that asks.

The command that the panel shows has to work on another machine. The balancer knows which sockets
its management port has; only the browser's request shows by which name the machine is reached from
there. Neither knows what a container or a firewall in between does with ports.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from paddler_trio.net.server.exchange import Exchange
from paddler_trio.system.config import split_address

MAX_HOST_CHARS: Final = 253

_HOST = re.compile(
    r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?))(?::\d*)?"
)
"""Nothing that a shell would interpret: people copy the command."""


@attrs.frozen
class Join:
    """``address`` is for ``--management-addr``: ``host:port``, over TLS with ``https://`` in front;
    None if there is none to give. ``problem`` is why other machines cannot use it, and what to
    start instead."""

    address: str | None
    problem: str | None = None


def own_address() -> str | None:
    """Return the address of this machine in its network; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation: only a route is chosen
        except OSError:
            return None  # no network
        address = str(probe.getsockname()[0])
    return None if _is_loopback(address) else address


def join_address(
    exchange: Exchange,
    management: Sequence[str],
    *,
    is_encrypted: bool = False,
    find_own: Callable[[], str | None] = own_address,
) -> Join:
    """Return the address for the browser of this request.

    Args:
      management: where the management port is bound, ``host:port`` each.
      is_encrypted: it has TLS.
    """
    join = _join(exchange, management, find_own)
    if is_encrypted and join.address is not None:
        return attrs.evolve(join, address=f"https://{join.address}")
    return join


def _join(
    exchange: Exchange, management: Sequence[str], find_own: Callable[[], str | None]
) -> Join:
    asked = host_of(exchange)
    bound = [split_address(each) for each in management]
    port = bound[0][1]
    open_to_all = [host for host, _ in bound if ipaddress.ip_address(host).is_unspecified]
    open_to_some = [host for host, _ in bound if not _is_loopback(host)]
    if not open_to_some:
        here = asked is not None and _is_loopback(asked)
        problem = (
            "The management port listens on the loopback, so only agents on the balancer's own "
            f"machine reach it. For others start the balancer with --management-addr 0.0.0.0:{port}"
            " and --api-key-file FILE (`paddler-trio key new NAME --scope management --file FILE`)."
        )
        return Join(_joined(bound[0][0], port) if here else None, problem)
    if not open_to_all:
        return Join(_joined(open_to_some[0], port))
    if asked is not None and not _is_loopback(asked):
        return Join(_joined(asked, port))
    own = find_own()
    if own is not None:
        return Join(_joined(own, port))
    return Join(
        _joined("127.0.0.1", port),
        "This machine has no address in a network: only agents on it can reach the balancer. "
        f"From elsewhere, use its name there and port {port}.",
    )


def host_of(exchange: Exchange) -> str | None:
    """Return the name or address under which the browser reached us, a proxy in front included;
    None if it is neither."""
    forwarded = (exchange.header(b"x-forwarded-host") or b"").split(b",")[0].strip()
    found = _HOST.fullmatch((forwarded or exchange.header(b"host") or b"").decode("latin-1"))
    host = (found[1] or found[2]) if found is not None else ""
    return host.lower() if 0 < len(host) <= MAX_HOST_CHARS else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
