"""The client and the priority of a request, from headers: no body has fields for them.

``--trusted-proxy``: whose ``X-Forwarded-For`` says where a request comes from.

Each proxy writes behind the others who connected to it. What stands left of the last hop that is no
trusted proxy may be anything that a client wrote.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final

import attrs

from paddler_trio.net.networks import Network, is_within
from paddler_trio.net.server.asgi import HttpProblem, Scope
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.scheduler.dispatch.fair_order import Priority
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT
from paddler_trio.wire.visible_text import visible

CLIENT_HEADER = b"x-paddler-client"
PRIORITY_HEADER = b"x-paddler-priority"
MAX_CLIENT_CHARS = 128
MAX_PROGRAM_CHARS = 60
"""Of a client's ``User-Agent``, as people are shown it, and of the name of its user."""


@attrs.define
class Source:
    """A source tells people where a request came from: its address, its program, and the user
    that it names.

    What a stranger chose is cut, and what cannot be seen of it is escaped.
    """

    address: str
    program: str = ""
    user: str = ""

    @classmethod
    def of(cls, exchange: Exchange) -> Source:
        """Return what the head of a request says; its body may name a user."""
        program = (exchange.header(b"user-agent") or b"")[:MAX_PROGRAM_CHARS]
        return cls(exchange.client[0], visible(program.decode("latin-1")))

    @property
    def words(self) -> str:
        """Return all of it in one line."""
        user = visible(self.user[:MAX_PROGRAM_CHARS])
        parts = (self.address, self.program, f"user {user}" if user else "")
        return ", ".join([part for part in parts if part])


TIMEOUT_HEADER = b"x-request-timeout"
MAX_TIMEOUT_S = 86_400.0
MAX_TIMEOUT_CHARS = 32
_SECONDS = re.compile(rb"(\d{1,16}(?:\.\d{1,16})?)\s*s?")
TIMEOUT_S: ContextVar[float | None] = ContextVar("timeout_s", default=None)
"""For how long the client of the request waits that this task answers; None for any time."""
SOURCE: ContextVar[Source | None] = ContextVar("source", default=None)
"""Of the request that this task answers; tasks that it starts have the same."""


def client_of(exchange: Exchange) -> tuple[str, Priority]:
    """The client to which the queue is fair, and the priority; HttpProblem 400 for a bad header.

    With an API key the client is the key's name, so several names do not get several turns. Without
    one it is the text of ``X-Paddler-Client``; requests without both share one anonymous client.
    ``X-Paddler-Priority`` is high, normal (the default) or low. ``X-Request-Timeout`` is kept in
    ``TIMEOUT_S``.
    """
    TIMEOUT_S.set(timeout_of(exchange))
    size_bytes = len(exchange.header(CLIENT_HEADER) or b"")
    if size_bytes > MAX_CLIENT_CHARS:
        raise HttpProblem(
            400, f"X-Paddler-Client has {size_bytes} characters, the limit is {MAX_CLIENT_CHARS}"
        )
    client = named_client(exchange)
    name = (exchange.header(PRIORITY_HEADER) or b"normal").decode("latin-1").strip().upper()
    if name not in Priority.__members__:
        raise HttpProblem(
            400, f"X-Paddler-Priority is {name.lower()!r}, must be high, normal or low"
        )
    return client, Priority[name]


def timeout_of(exchange: Exchange) -> float | None:
    """Return the seconds for which the client waits for the whole answer; None for any time.

    HttpProblem 400 if ``X-Request-Timeout`` is no number of seconds, or out of bounds.
    """
    text = exchange.header(TIMEOUT_HEADER)
    if text is None:
        return None
    found = _SECONDS.fullmatch(text[:MAX_TIMEOUT_CHARS].strip())
    seconds = math.nan if found is None else float(found[1])
    if not 0 < seconds <= MAX_TIMEOUT_S:
        shown = visible(text[:MAX_TIMEOUT_CHARS].decode("latin-1"))
        raise HttpProblem(
            400,
            f"X-Request-Timeout is {shown!r}, must be seconds, more than 0 and at most "
            f"{MAX_TIMEOUT_S:g}",
        )
    return seconds


def named_client(exchange: Exchange) -> str:
    """Return the name of the API key, else the text of ``X-Paddler-Client``, in which what cannot
    be seen is escaped; empty without both."""
    name = (exchange.header(CLIENT_HEADER) or b"")[:MAX_CLIENT_CHARS].decode("latin-1")
    return exchange.identity.key_name or visible(name)


def default_problem(exchange: Exchange) -> str | None:
    """Why the key of the request may not use Paddler's routes, which lead to the deployment
    ``default``; None if it may."""
    allowed = exchange.identity.deployments
    if allowed is None or DEFAULT_DEPLOYMENT in allowed:
        return None
    names = " and ".join(sorted(allowed))
    return (
        f"the API key {exchange.identity.key_name!r} is for the deployments {names}, and this is "
        f"answered by {DEFAULT_DEPLOYMENT}"
    )


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
