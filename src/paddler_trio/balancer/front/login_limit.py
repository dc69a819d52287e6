"""Limit how often somebody may fail to sign in, by address and in all: who knows a key is never
limited.

A key cannot be guessed. The limit keeps a script that tries from filling the log and the audit, and
tells it when to come again. Many people may have one address, so it keeps no right key out.
"""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.net.networks import household
from paddler_trio.scheduler.limits.token_bucket import TokenBucket

BURST: Final = 10
PER_S: Final = 1 / 6
"""Of one address; of IPv6 the first 64 bits, which is what one household has."""
ALL_BURST: Final = 100
ALL_PER_S: Final = 10.0
MAX_ADDRESSES: Final = 1024
"""Beyond it the address that failed least recently is forgotten; ``ALL_PER_S`` still holds."""


@attrs.define(eq=False)
class LoginLimit:
    """See the module docstring; all times are of one clock."""

    _all: TokenBucket | None = attrs.field(default=None, init=False)
    _by_address: dict[str, TokenBucket] = attrs.field(factory=dict, init=False)

    def wait_s(self, address: str, now_s: float) -> float:
        """Return for how long a failure of this address is one too many; 0 if it is not."""
        buckets = (self._all, self._by_address.get(household(address)))
        return max(0.0 if bucket is None else bucket.wait_s(now_s) for bucket in buckets)

    def failed(self, address: str, now_s: float) -> None:
        """Somebody at this address tried, and did not know a key."""
        network = household(address)
        own = self._by_address.pop(network, None) or TokenBucket(BURST, PER_S, now_s)
        while len(self._by_address) >= MAX_ADDRESSES:
            del self._by_address[next(iter(self._by_address))]
        self._by_address[network] = own  # behind the others: it failed last
        own.take(now_s)
        self._all = self._all or TokenBucket(ALL_BURST, ALL_PER_S, now_s)
        self._all.take(now_s)
