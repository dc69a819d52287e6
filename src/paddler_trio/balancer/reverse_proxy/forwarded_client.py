"""Decide whose turn in the queue a forwarded request takes.

Programs that speak to a server know nothing of our headers. So a request without a name of its own
is told apart by the key that it shows, which is for the server if this balancer asks for none, and
else by the address that it came from: one user with a thousand documents is one client of many.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Final

from paddler_trio.balancer.front.end_user import user_in, user_of
from paddler_trio.balancer.reverse_proxy.server_pools import MAX_READ_BYTES
from paddler_trio.errors import WireError
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.client_identity import client_of
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.json_body import decoded, input_of
from paddler_trio.scheduler.dispatch.fair_order import Priority

_SHOWN_KEYS: Final = (b"authorization", b"x-api-key", b"api-key")
_HASH_KEY: Final = secrets.token_bytes(16)
"""Ends with the process: a key of somebody else's server cannot be guessed from its name here."""
_NAMES_A_USER: Final = re.compile(rb'"(?:user|safety_identifier|user_id)"\s*:')
_LOOK_AT_BYTES: Final = 65_536
"""At the beginning of a body and at its end, where programs name the user: looking through all of
64 MiB may take two seconds."""


def forwarded_client(exchange: Exchange) -> tuple[str, Priority]:
    """Return the client to which the queue is fair, and the priority; HttpProblem 400 for a bad
    header.

    The client is, whichever is there first: the name of the API key or ``X-Paddler-Client``; the
    key that is shown, as ``key`` and eight digits; the address.
    """
    name, priority = client_of(exchange)
    if name:
        return name, priority
    for field in _SHOWN_KEYS:
        if key := exchange.header(field):
            digest = hashlib.blake2s(key, key=_HASH_KEY, digest_size=4)
            return f"key {digest.hexdigest()}", priority
    return str((exchange.scope.get("client") or ("",))[0]), priority


async def forwarded_user(exchange: Exchange, body: bytes | bytearray) -> str:
    """Return what stands for the client's user, by the header or the body; empty without either."""
    user = user_of(exchange)
    if user or not (
        _NAMES_A_USER.search(body, 0, _LOOK_AT_BYTES)
        or _NAMES_A_USER.search(body, max(0, len(body) - _LOOK_AT_BYTES))
    ):
        return user
    room = input_of(exchange)
    before = room.used_bytes
    try:
        whole = body if isinstance(body, bytearray) else bytearray(body)  # read only, not copied
        return await decoded(exchange, whole, _user, limit_bytes=MAX_READ_BYTES)
    except (HttpProblem, WireError):
        return ""  # the server that gets it says what is wrong with it
    finally:
        room.shrink(room.used_bytes - before)  # nothing of the value is kept


def _user(value: object) -> str:
    return user_in(value) if isinstance(value, dict) else ""
