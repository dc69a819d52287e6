"""The client and the priority of a request, from headers: no body has fields for them.

``--trusted-proxy``: whose ``X-Forwarded-For`` says where a request comes from.

Each proxy writes behind the others who connected to it. What stands left of the last hop that is no
trusted proxy may be anything that a client wrote.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final

import attrs
import trio

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


MAX_TIMEOUT_S = 86_400.0
MAX_TIMEOUT_CHARS = 32
_NUMBER = re.compile(r"[0-9]{1,16}(?:\.[0-9]{1,16})?")
_TIMEOUT_HEADERS = {
    b"x-request-timeout": ("X-Request-Timeout", 1),
    b"x-litellm-timeout": ("x-litellm-timeout", 1),
    b"x-envoy-expected-rq-timeout-ms": ("x-envoy-expected-rq-timeout-ms", 1000),
}
"""Headers that bound the whole answer, with their names for people, and how many of each are a
second: ours, LiteLLM's, and the one in which Envoy tells a server when it will cut the response."""
_LIBRARY_HEADERS = (b"x-stainless-read-timeout", b"x-stainless-timeout")
"""Headers in which the libraries of OpenAI and Anthropic tell for how many seconds they wait until
something comes."""
_LIBRARY_DEFAULT_S = 600
_LIBRARY_GRACE_S = 1
"""A client that leaves on time raises what its user expects; and some cut to whole seconds."""


@attrs.frozen
class Patience:
    """The time for which a client waits for the whole answer.

    Args:
      seconds: counted from ``since_s``.
      field: the header or the field of the body that says so.
      since_s: on Trio's clock; None: from the arrival of each request.
    """

    seconds: float
    field: str = "X-Request-Timeout"
    since_s: float | None = None


PATIENCE: ContextVar[Patience | None] = ContextVar("patience", default=None)
"""Of the client of the request that this task answers; None for any time."""
SOURCE: ContextVar[Source | None] = ContextVar("source", default=None)
"""Of the request that this task answers; tasks that it starts have the same."""


def client_of(exchange: Exchange) -> tuple[str, Priority]:
    """The client to which the queue is fair, and the priority; HttpProblem 400 for a bad header.

    With an API key the client is the key's name, so several names do not get several turns. Without
    one it is the text of ``X-Paddler-Client``; requests without both share one anonymous client.
    ``X-Paddler-Priority`` is high, normal (the default) or low. What bounds the answer in time is
    kept in ``PATIENCE``.
    """
    PATIENCE.set(_patience_of(exchange))
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


def _patience_of(exchange: Exchange) -> Patience | None:
    """Return the shortest time that a header bounds the answer to; None if none does.

    HttpProblem 400 if one of them is no number, or out of bounds.
    """
    found = [
        (_header_s(name, value, per_s), name)
        for header, (name, per_s) in _TIMEOUT_HEADERS.items()
        if (value := exchange.header(header)) is not None
    ]
    if not found:
        return None
    # on a WebSocket each message is a request
    return Patience(*min(found), None if exchange.is_websocket else trio.current_time())


def _header_s(name: str, value: bytes, per_s: int) -> float:
    text = value[: MAX_TIMEOUT_CHARS + 1].decode("latin-1")
    seconds = seconds_of(text, per_s=per_s)
    if seconds is None:
        unit = "seconds" if per_s == 1 else "milliseconds"
        raise HttpProblem(
            400,
            f"{name} is {visible(text[:MAX_TIMEOUT_CHARS])!r}, must be {unit}, more than 0 and at "
            f"most {MAX_TIMEOUT_S * per_s:.0f}",
        )
    return seconds


def seconds_of(value: object, *, per_s: int = 1) -> float | None:
    """Return a time within the bounds, which is a number or the text of one; None for all else.

    Args:
      per_s: how many of its unit are a second. A text of seconds may end with ``s``.
    """
    if isinstance(value, str) and len(value) <= MAX_TIMEOUT_CHARS:
        digits = value.strip()
        digits = digits.removesuffix("s").rstrip() if per_s == 1 else digits
        value = float(digits) if _NUMBER.fullmatch(digits) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value / per_s if 0 < value <= MAX_TIMEOUT_S * per_s else None


def note_timeout(exchange: Exchange, asked: object, since_s: float, *, is_stream: bool) -> None:
    """Keep in ``PATIENCE`` what else bounds the answer, if it is shorter.

    The library of a client says how long it waits until something comes. That bounds an answer
    that is sent when it is complete, and no stream. Its default nobody has asked for.

    Args:
      asked: what the body has as ``timeout``; what is no time is passed over.
      since_s: when the request came, on Trio's clock.
    """
    found = {"timeout": seconds_of(asked)}
    for header in () if is_stream else _LIBRARY_HEADERS:
        seconds = seconds_of((exchange.header(header) or b"").decode("latin-1"))
        if seconds is not None and 1 <= seconds < _LIBRARY_DEFAULT_S:
            found[f"{header.decode()} and 1 s"] = seconds + _LIBRARY_GRACE_S
    for field, seconds in found.items():
        before = PATIENCE.get()
        if seconds is not None and (before is None or seconds < before.seconds):
            PATIENCE.set(Patience(seconds, field, since_s))


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
