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

_WITH_PORT: Final = re.compile(r"\[([^\]]*)\](?::\d+)?|([\d.]+):\d+")


def client_behind(scope: Scope, proxies: Sequence[Network]) -> str | None:
    """Return the address for which trusted proxies forward a request; None for that of the
    connection itself."""
    peer = str((scope.get("client") or ("unknown",))[0])
    if not is_within(proxies, peer):
        return None
    client = peer
    values = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    for hop in reversed(b",".join(values).decode("latin-1").rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
        address = _address(hop.strip())
        if address is None:
            break
        client = address
        if not is_within(proxies, address):
            break
    return None if client == peer else client


def _address(hop: str) -> str | None:
    found = _WITH_PORT.fullmatch(hop)
    text = hop if found is None else found[1] or found[2]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None
