"""Remember which server has the beginning of a request in its cache, as far as its answers have
told.

llama-server ends an answer with ``timings.cache_n``, the tokens of the prompt that it did not
compute; vLLM and others with ``cached_tokens``. Beginnings are compared as bytes of the request's
body, which one client writes in one order, at lengths that double: a dozen hashes a request.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

import attrs

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
