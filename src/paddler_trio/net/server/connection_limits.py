"""The limits of one client of the server, in size and time.

Choose which connection is given up for a new one when a server is full: one of who has most.

What counts as one holder is an address, of IPv6 a household. A proxy that is trusted speaks for
many and is never asked for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

import attrs
from attrs.validators import ge, gt

from paddler_trio.net.networks import Network, household, is_within


@attrs.frozen(kw_only=True)
class HttpLimits:
    """The limits of one HTTP server; the defaults suit a daemon that faces a network.

    Attributes:
      max_connections: open at the same time, about 20 KiB each; a further one is closed at once,
        unless another address has more of them: then that one gives one up.
      header_deadline_s: from the accept to the end of the first request's header; bytes that
        trickle in do not extend it.
      keep_alive_s: from the end of a response to the end of the next request's header.
      write_timeout_s: one write to a client that does not read may take this long.
      drain_write_timeout_s: while the server ends, each 256 KiB of a write may take
        this long: a client that reads nothing would hold up the end.
      linger_s: after our last byte the client may take this long to close its side, so that
        what it still sends does not reset the connection under an answer it has not read.
      drain_linger_s: the same when the connection ends because the server does.
      max_header_bytes: names and values of one request's header together.
      max_target_bytes: path and query of one request; RFC 9112 recommends 8000 at least.
      max_websocket_message_bytes: one reassembled message; Paddler accepts 50 MiB.
      max_read_ahead_bytes: read of what a client sent after a request still being answered, beyond
        the first 32 KiB only while the input budget is little used; the rest stays in the kernel
        and makes the client wait.
      ping_interval_s: between two pings of ours on a WebSocket, the first right after it was
        accepted; their pongs are not checked, they give TCP_USER_TIMEOUT something to time.
      trusted_proxies: networks whose ``X-Forwarded-For`` is believed.
    """

    max_connections: int = attrs.field(default=4096, validator=ge(1))
    header_deadline_s: float = attrs.field(default=10.0, validator=gt(0))
    keep_alive_s: float = attrs.field(default=15.0, validator=gt(0))
    write_timeout_s: float = attrs.field(default=30.0, validator=gt(0))
    drain_write_timeout_s: float = attrs.field(default=0.5, validator=gt(0))
    linger_s: float = attrs.field(default=2.0, validator=ge(0))
    drain_linger_s: float = attrs.field(default=0.25, validator=ge(0))
    max_header_bytes: int = attrs.field(default=16_384, validator=ge(256))
    max_target_bytes: int = attrs.field(default=8192, validator=ge(256))
    max_websocket_message_bytes: int = attrs.field(default=52_428_800, validator=ge(1))
    max_read_ahead_bytes: int = attrs.field(default=33_554_432, validator=ge(0))
    ping_interval_s: float = attrs.field(default=3.0, validator=gt(0))
    trusted_proxies: tuple[Network, ...] = ()


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
