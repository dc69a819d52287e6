"""``--trusted-proxy``: whose ``X-Forwarded-For`` says where a request comes from.

Each proxy writes behind the others who connected to it. What stands left of the last hop that is no
trusted proxy may be anything that a client wrote.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

from paddler_trio.net.networks import Network, is_within
from paddler_trio.net.server.asgi import Scope

FLAG: Final = "--trusted-proxy"
MAX_HOPS: Final = 32
PEER: Final = "paddler_trio.peer"
"""The member of a scope that has the address of the connection, where ``client`` is another's."""

_WITH_PORT: Final = re.compile(r"\[([^\]]*)\](?::\d+)?|([\d.]+):\d+")


def peer_of(scope: Scope) -> str:
    """Return the address at the other end of the connection."""
    return str(scope.get(PEER) or (scope.get("client") or ("unknown",))[0])


def look_behind(scope: Scope, proxies: Sequence[Network]) -> None:
    """Make ``client`` of a scope the one for whom trusted proxies forward it, with port 0."""
    peer = peer_of(scope)
    if not is_within(proxies, peer):
        return
    client = peer
    values = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    for hop in reversed(b",".join(values).decode("latin-1").rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
        address = _address(hop.strip())
        if address is None:
            break
        client = address
        if not is_within(proxies, address):
            break
    if client != peer:
        scope[PEER] = peer
        scope["client"] = (client, 0)


def _address(hop: str) -> str | None:
    found = _WITH_PORT.fullmatch(hop)
    text = hop if found is None else found[1] or found[2]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None
