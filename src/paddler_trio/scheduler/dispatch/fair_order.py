"""Order waiting requests: fair between clients, by class, without starvation.

Every request gets a *tag* when it arrives, a virtual time measured in turns: the current turn for a
client that has nothing ahead of it, one turn after its previous request otherwise. The smallest
tag is served first and sets the current turn. So clients take turns however much each of them
sends, and the requests of one client stay in order of arrival. With a single client that is plain
arrival order.

A priority class moves a request by a fixed number of turns. Turns pass with every grant, so what
waits is overtaken at most that many times by each other client: ageing, without a clock.

Source: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM '96), with unit costs.
"""

from __future__ import annotations

from enum import Enum
from typing import NewType, TypeAlias

import attrs

RequestKey = NewType("RequestKey", int)
"""A request's arrival number: smaller means earlier, and it is never used again."""

Place: TypeAlias = "tuple[int, RequestKey]"
"""The place of a request: it sorts before all that are served after it."""

_REMEMBERED_CLIENTS = 1024
"""Those with nothing ahead of them are forgotten when there are twice as many as the last time."""


class Priority(Enum):
    """The value is how many turns a request of this class stands back."""

    HIGH = 0
    NORMAL = 8
    LOW = 32


@attrs.define
class FairOrder:
    """Gives places; knows nothing of slots."""

    _turn: int = attrs.field(default=0, init=False)
    _last_tags: dict[str, int] = attrs.field(factory=dict, init=False)
    _forget_at: int = attrs.field(default=_REMEMBERED_CLIENTS, init=False)

    def place(self, request: RequestKey, *, client: str, priority: Priority) -> Place:
        """Return the place of a newly arrived request; it keeps this place until it ends."""
        last = self._last_tags.get(client)
        tag = self._turn if last is None else max(self._turn, last + 1)
        self._last_tags[client] = tag
        if len(self._last_tags) > self._forget_at:
            self._forget_the_served()
        return (tag + priority.value, request)

    def due(self, request: RequestKey, priority: Priority) -> Place:
        """Return the place of a request that had its turn and lost what it got: it has the current
        one, and its client pays for no other."""
        return (self._turn + priority.value, request)

    def granted(self, place: Place, priority: Priority) -> None:
        """Note that the request at this place got a slot: its turn is the current one."""
        self._turn = max(self._turn, place[0] - priority.value)

    def gave_up(self, client: str, last_turn: int | None) -> None:
        """Note that a request of this client left the queue unserved: the turn it had is its
        client's again.

        ``last_turn`` is the largest tag of those that the client has waiting, if any; what arrives
        next stands behind them. Without this, a client whose requests time out while no agent
        serves would pay for them later.
        """
        last = self._last_tags.get(client)
        if last is not None:
            now = self._turn if last_turn is None else max(self._turn, last_turn)
            self._last_tags[client] = min(last, now)

    def _forget_the_served(self) -> None:
        """Forget clients with nothing ahead of the current turn, as if they had never asked."""
        self._last_tags = {c: tag for c, tag in self._last_tags.items() if tag > self._turn}
        self._forget_at = max(_REMEMBERED_CLIENTS, 2 * len(self._last_tags))
