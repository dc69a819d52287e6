"""Choose which connection is given up for a new one when a server is full: one of who has most.

What counts as one holder is an address, of IPv6 a household. A proxy that is trusted speaks for
many and is never asked for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

import attrs

from paddler_trio.net.networks import Network, household, is_within

LOOKED_AT: Final = 256
"""The oldest connections of a holder, among which one is looked for without a request."""


class Held(Protocol):
    """A connection, as far as it matters here."""

    @property
    def is_quiet(self) -> bool:
        """Nothing is in progress."""
        ...


T = TypeVar("T", bound=Held)


@attrs.define(eq=False)
class ConnectionShares(Generic[T]):
    """The open connections of a server by holder."""

    trusted: Sequence[Network] = ()
    _by_holder: dict[str, dict[T, None]] = attrs.field(factory=dict, init=False)
    """The connections of each holder, the oldest first."""
    _holders: dict[T, str] = attrs.field(factory=dict, init=False)

    def add(self, connection: T, address: str) -> None:
        """Count a connection from ``address``."""
        if is_within(self.trusted, address):
            return
        holder = household(address)
        self._holders[connection] = holder
        self._by_holder.setdefault(holder, {})[connection] = None

    def remove(self, connection: T) -> None:
        """Count it no longer. Safe to repeat."""
        holder = self._holders.pop(connection, None)
        if holder is not None:
            held = self._by_holder[holder]
            del held[connection]
            if not held:
                del self._by_holder[holder]

    def gives_up(self, address: str) -> T | None:
        """Return the connection that makes room for a new one from ``address``: the oldest without
        a request of who has most, else their newest. None if nobody has at least two more than
        would be theirs: the new one is one too many."""
        own = len(self._by_holder.get(household(address), ()))
        most: dict[T, None] = max(self._by_holder.values(), key=len, default={})
        if len(most) < own + 2:
            return None
        quiet = next((each for each in islice(most, LOOKED_AT) if each.is_quiet), None)
        return next(reversed(most)) if quiet is None else quiet
