"""Order waiting requests: fair between clients, by class, without starvation.

Every request gets a *tag* when it arrives, a virtual time measured in turns: the current turn for a
client that has nothing ahead of it, otherwise the end of its previous request, which is that one's
tag and as many turns as it was charged. The smallest tag is served first and sets the current turn.
So clients get equal shares of what is charged however much each of them sends, and the requests of
one client stay in order of arrival. With a single client that is plain arrival order.

What a request is charged is an estimate (``turn_costs.py``), a turn each where nothing is known.
When it ends its client is charged the rest, or gets it back. That moves what the client asks next,
and nothing that waits: a place that was given is kept. Nobody is put before the current turn, so no
credit outlasts a time without requests, and nobody further behind it than ``MOST_AHEAD`` by this.

A priority class moves a request by a fixed number of turns. Turns pass with grants, so a request is
overtaken by at most that much work of each other client: ageing, without a clock.

Source: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM '96); charges that are corrected by
what was used as in the virtual token counter (Sheng et al., OSDI '24).
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NewType, TypeAlias

import attrs

RequestKey = NewType("RequestKey", int)
"""A request's arrival number: smaller means earlier, and it is never used again."""

Place: TypeAlias = "tuple[float, RequestKey]"
"""The place of a request: it sorts before all that are served after it. Turns are whole multiples
of 1/256, with which floats are exact."""

MOST_AHEAD: Final = 1024.0
"""Turns of the others that a client waits at most for what its earlier requests cost beyond what
they were charged."""
_REMEMBERED_CLIENTS: Final = 1024
"""Clients are forgotten when there are twice as many as the last time, and more than this."""


class Priority(Enum):
    """The value is how many turns a request of this class stands back."""

    HIGH = 0
    NORMAL = 8
    LOW = 32


@attrs.define
class FairOrder:
    """Gives places; knows nothing of slots."""

    _turn: float = attrs.field(default=0.0, init=False)
    _clients: dict[str, tuple[float, float]] = attrs.field(factory=dict, init=False)
    """Of each client the tag that its next request may not be before, so that its own stay in
    order, and the end of what it was charged; the client that asked last comes last."""
    _forget_at: int = attrs.field(default=_REMEMBERED_CLIENTS, init=False)

    def place(
        self, request: RequestKey, *, client: str, priority: Priority, charge: float = 1.0
    ) -> Place:
        """Return the place of a newly arrived request; it keeps this place until it ends. Its
        client is charged so many turns, a multiple of 1/256."""
        tag = self._turn
        before = self._clients.pop(client, None)
        if before is not None:
            tag = max(tag, *before)
        self._clients[client] = tag, tag + charge
        if len(self._clients) > self._forget_at:
            self._forget()
        return (tag + priority.value, request)

    def due(self, request: RequestKey, priority: Priority) -> Place:
        """Return the place of a request that had its turn and lost what it got: it has the current
        one, and its client pays for no other."""
        return (self._turn + priority.value, request)

    def granted(self, place: Place, priority: Priority) -> None:
        """Note that the request at this place got a slot: its turn is the current one."""
        self._turn = max(self._turn, place[0] - priority.value)

    def gave_up(
        self, client: str, tag: float, last_turn: float | None, *, charge: float = 1.0
    ) -> None:
        """Note that a request of this client, with this tag, left the queue unserved: what it was
        charged is its client's again, but for turns that have passed. ``last_turn`` as in
        :meth:`correct`.

        Without this, a client whose requests time out while no agent serves would pay for them
        later.
        """
        left = min(charge, tag + charge - self._turn)
        if left > 0:
            self.correct(client, -left, last_turn)

    def correct(self, client: str, turns: float, last_turn: float | None) -> None:
        """Charge a client so many turns more, or fewer if that is negative.

        ``last_turn`` is the largest tag of those that the client has waiting, if any; what arrives
        next stands behind them.
        """
        known = self._clients.get(client)
        if known is None:
            return
        least = self._turn if last_turn is None else last_turn
        most = max(known[1], self._turn + MOST_AHEAD)
        self._clients[client] = least, min(max(known[1] + turns, self._turn), most)

    def _forget(self) -> None:
        """Forget clients with nothing ahead of the current turn, as if they had never asked; if too
        many are left, also those that asked longest ago and have nothing waiting."""
        left = {client: each for client, each in self._clients.items() if max(each) > self._turn}
        spare = len(left) - _REMEMBERED_CLIENTS
        self._clients = {
            client: each
            for number, (client, each) in enumerate(left.items())
            if number >= spare or each[0] > self._turn
        }
        self._forget_at = max(2 * _REMEMBERED_CLIENTS, 2 * len(self._clients))
