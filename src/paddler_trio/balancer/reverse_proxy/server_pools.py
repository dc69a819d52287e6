"""Choose which servers a request is for: those of one deployment, by the model that it names.

Decide whose turn in the queue a forwarded request takes.

Programs that speak to a server know nothing of our headers. So a request without a name of its own
is told apart by the key that it shows, which is for the server if this balancer asks for none, and
else by the address that it came from: one user with a thousand documents is one client of many.

Choose which server a request must go to, or had better go to, if it may not go to any.

A client may name an agent; a request that names a slot of llama-server goes to the same server
whenever the same client names it, as long as the same servers are there.

Remember which server has the beginning of a request in its cache, as far as its answers have
told.

llama-server ends an answer with ``timings.cache_n``, the tokens of the prompt that it did not
compute; vLLM and others with ``cached_tokens``. Beginnings are compared as bytes of the request's
body, which one client writes in one order, at lengths that double: a dozen hashes a request.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from paddler_trio.balancer.front.end_user import user_in, user_of
from paddler_trio.errors import WireError
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.client_identity import client_of
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.json_body import decoded, input_of
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.pool import Pool
from paddler_trio.scheduler.dispatch.fair_order import Priority

MAX_READ_BYTES = 64 * 1024 * 1024


@attrs.frozen(eq=False)
class ServerPools:
    """The pools of servers by the names that requests may use."""

    dispatcher: Dispatcher

    def all(self) -> list[Pool]:
        return self.dispatcher.pools.upstreams()

    def called(self, model: str) -> Pool | None:
        """Return the one whose deployment has this name, else one of whose servers says that it
        serves a model of this name; those that are ready come first."""
        pools = self.all()
        for pool in pools:
            if pool.name == model:
                return pool
        serving = [
            (agent.is_accepting, pool)
            for pool in pools
            for agent in pool.agents.values()
            if agent.upstream is not None and model in agent.upstream.models
        ]
        return max(serving, key=lambda each: each[0])[1] if serving else None

    def any_of(self) -> Pool | None:
        """Return servers for a request that names no model of theirs: one that has agents, if one
        has; None only if there are no servers at all."""
        pools = self.all()
        return max(pools, key=lambda pool: bool(pool.agents), default=None)

    def any_with_servers(self) -> Pool | None:
        """Return the servers of :meth:`any_of`; None while no server is there."""
        return next((pool for pool in self.all() if pool.agents), None)


async def model_in(exchange: Exchange, body: bytes | bytearray) -> str | None:
    """Return the model that a JSON body names; None if it names none, or is no JSON: the server
    that gets it says what is wrong with it.

    Errors:
      HttpProblem: 413 or 503, there is no room to look: another model must not answer for that.
    """
    if exchange.header(b"content-encoding") is None and b'"model"' not in body:
        return None
    room = input_of(exchange)
    before = room.used_bytes
    try:
        whole = body if isinstance(body, bytearray) else bytearray(body)  # read only, not copied
        return await decoded(exchange, whole, _model, limit_bytes=MAX_READ_BYTES)
    except HttpProblem as problem:
        if problem.status in (413, 503):
            raise
        return None
    except WireError:
        return None
    finally:
        room.shrink(room.used_bytes - before)  # nothing of the value is kept


def _model(value: object) -> str | None:
    model = value.get("model") if isinstance(value, dict) else None
    return model if isinstance(model, str) else None


def must_allow(exchange: Exchange, pool: Pool) -> None:
    """Raise HttpProblem 403 for a key that may not use these servers."""
    allowed = exchange.identity.deployments
    if allowed is not None and pool.name not in allowed:
        names = " and ".join(sorted(allowed))
        raise HttpProblem(
            403, f"this API key is for the deployments {names}, and this is answered by {pool.name}"
        )


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


MIN_BYTES: Final = 512
"""A shorter beginning is computed in no time."""
MAX_BYTES: Final = 262_144
MAX_BEGINNINGS: Final = 16_384
"""Remembered at most: some 2 MiB."""
MAX_LEAD: Final = 0.5
"""By how much of its slots a preferred server may be busier than the least busy one."""
_CACHED: Final = re.compile(rb'"(?:cache_n|cached_tokens)"\s*:\s*(\d{1,9})')


def cached_tokens(tail: bytes) -> int | None:
    """Return what an answer that ends so says of the cache; None if it says nothing."""
    found = _CACHED.findall(tail)
    return int(found[-1]) if found else None


@attrs.define(eq=False)
class PrefixAffinity:
    """The beginnings of requests, each with the id of the agent whose server had it last."""

    _homes: OrderedDict[bytes, str] = attrs.field(factory=OrderedDict, init=False)

    def __repr__(self) -> str:
        return f"<PrefixAffinity of {len(self._homes)} beginnings>"

    def home(self, body: bytes | bytearray) -> str | None:
        """Return the agent whose server had the longest beginning of this; None if none did."""
        for digest in reversed(list(_beginnings(body))):
            home = self._homes.get(digest)
            if home is not None:
                self._homes.move_to_end(digest)
                return home
        return None

    def answered(self, body: bytes | bytearray, agent: str, cached: int | None) -> None:
        """The server behind ``agent`` has answered this, with so many tokens from its cache.

        It has the beginnings of it now, unless it has just shown that it keeps none.
        """
        for digest in _beginnings(body):
            if cached == 0 and self._homes.get(digest) == agent:
                del self._homes[digest]  # it was there, and is not any more
            else:
                self._homes[digest] = agent
                self._homes.move_to_end(digest)
        while len(self._homes) > MAX_BEGINNINGS:
            self._homes.popitem(last=False)


def _beginnings(body: bytes | bytearray) -> Iterator[bytes]:
    """Return digests of the beginnings of this, the shortest first."""
    digest = hashlib.blake2b(digest_size=16)
    start, length = 0, MIN_BYTES
    while length <= min(len(body), MAX_BYTES):
        digest.update(memoryview(body)[start:length])
        yield digest.digest()
        start, length = length, 2 * length


def named(agents: Iterable[AgentConnection], name: str) -> AgentConnection | None:
    """Return the agent of this name or id."""
    for agent in agents:
        if name in (agent.label, agent.id):
            return agent
    return None


def home_of_slot(
    agents: Iterable[AgentConnection], client: str, slot: int
) -> AgentConnection | None:
    """Return the agent that this client means by the slot of this number: by rendezvous hashing, so
    that one that comes or leaves moves few of them. None if there is none."""

    def weight(agent: AgentConnection) -> bytes:
        text = f"{agent.label}\0{client}\0{slot}".encode()
        return hashlib.blake2s(text, digest_size=8).digest()

    return max(agents, key=weight, default=None)


def preferred(agents: Iterable[AgentConnection], agent_id: str | None) -> AgentConnection | None:
    """Return the agent of this id, if it has a free slot and is not much busier than the others."""
    ready = [each for each in agents if each.is_accepting and each.usable_slots]
    home = next((each for each in ready if each.id == agent_id), None)
    if home is None or home.slots_processing >= home.usable_slots:
        return None
    return home if _load(home) - min(map(_load, ready)) <= MAX_LEAD else None


def _load(agent: AgentConnection) -> float:
    return agent.slots_processing / max(1, agent.usable_slots)


def least_busy(agents: Iterable[AgentConnection]) -> AgentConnection | None:
    """Return the least busy of those that get work, for a request that takes no slot; None if none
    does."""
    ready = [agent for agent in agents if agent.is_accepting]
    return min(ready, key=_load, default=None)
