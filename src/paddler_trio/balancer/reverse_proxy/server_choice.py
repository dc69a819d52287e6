"""Choose which server a request must go to, or had better go to, if it may not go to any.

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
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from paddler_trio.nursery_tree.agent_connection import AgentConnection

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
