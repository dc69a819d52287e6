"""The requests that wait for a slot: in the order in which they will get one, and by what decides
about them.

* those that ask for the same, because the first of them stands for all: if it may have no free
  slot, none of them may;
* those of each client, for the turns that a client gets back when a request of it gives up;
* in a full buffer, those that never had a slot, since only these may be displaced.

Each of these is kept in order, so no event looks at all that wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import TypeAlias

import attrs

from paddler_trio.scheduler.dispatch.agent_index import Constraint
from paddler_trio.scheduler.dispatch.fair_order import Place, Priority, RequestKey
from paddler_trio.scheduler.dispatch.sorted_places import SortedPlaces

_Crowd: TypeAlias = "tuple[int, Place, str]"
"""How many requests of a client could be displaced, negative; the first of them; the client."""


@attrs.define
class Waiting:
    """A request that waits.

    Args:
      can_be_displaced: it never had a slot.
    """

    client: str
    place: Place
    priority: Priority
    wanted: Constraint
    can_be_displaced: bool

    @property
    def turn(self) -> Place:
        """Its tag, and its arrival: a client's own requests in order of arrival."""
        return (self.place[0] - self.priority.value, self.place[1])


@attrs.define
class _Client:
    turns: SortedPlaces[Place] = attrs.field(factory=SortedPlaces)
    """Of all its requests that wait."""
    newcomers: SortedPlaces[Place] = attrs.field(factory=SortedPlaces)
    """The places of those that can be displaced."""
    crowd: tuple[Priority, _Crowd] | None = None
    """Where it stands among those that could make room, if it does."""


@attrs.define
class WaitQueue:
    """See the module docstring."""

    _requests: dict[RequestKey, Waiting] = attrs.field(factory=dict, init=False)
    _by_wanted: dict[Constraint, SortedPlaces[Place]] = attrs.field(factory=dict, init=False)
    _clients: dict[str, _Client] = attrs.field(factory=dict, init=False)
    _crowds: dict[Priority, SortedPlaces[_Crowd]] = attrs.field(
        factory=lambda: {priority: SortedPlaces() for priority in Priority}, init=False
    )
    """Clients by the class of the last request that they could lose, the largest crowd first."""

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: RequestKey) -> bool:
        return request in self._requests

    def add(self, request: Waiting) -> int:
        """It waits from now on; how many stand before it."""
        place = request.place
        self._requests[place[1]] = request
        self._by_wanted.setdefault(request.wanted, SortedPlaces()).add(place)
        client = self._clients.get(request.client)
        if client is None:
            client = self._clients[request.client] = _Client()
        client.turns.add(request.turn)
        if request.can_be_displaced:
            client.newcomers.add(place)
            self._note_crowd(request.client, client)
        return self._before(place)

    def remove(self, key: RequestKey) -> Waiting:
        """It does not wait any more; KeyError if it did not."""
        request = self._requests.pop(key)
        place = request.place
        alike = self._by_wanted[request.wanted]
        alike.remove(place)
        if not alike:
            del self._by_wanted[request.wanted]
        client = self._clients[request.client]
        client.turns.remove(request.turn)
        if request.can_be_displaced:
            client.newcomers.remove(place)
            self._note_crowd(request.client, client)
        if not client.turns:
            del self._clients[request.client]
        return request

    def position(self, key: RequestKey) -> int | None:
        """How many stand before it; None if it does not wait."""
        request = self._requests.get(key)
        return None if request is None else self._before(request.place)

    def last_turn(self, client: str) -> int | None:
        """The tag of the latest of the client's requests that wait; None if none does."""
        waiting = self._clients.get(client)
        return None if waiting is None else waiting.turns.last[0]

    def first(self, but_not: Set[Constraint]) -> Waiting | None:
        """The first of those that ask for something else than these; None if there is none."""
        places = [
            places.first for wanted, places in self._by_wanted.items() if wanted not in but_not
        ]
        return self._requests[min(places)[1]] if places else None

    def wanted(self) -> Iterator[Constraint]:
        """What requests that wait ask for, each once."""
        return iter(self._by_wanted)

    def that_want(self, wanted: Constraint) -> list[RequestKey]:
        """Those that ask for exactly this, in order."""
        return [key for _, key in self._by_wanted.get(wanted, ())]

    def displaceable(self, client: str, priority: Priority) -> RequestKey | None:
        """The last one of the client with the most requests that could make room, if these are at
        least two more than ``client`` has, and the class of that one is not above ``priority``."""
        crowds = [
            crowd.first
            for its_class, crowd in self._crowds.items()
            if crowd and its_class.value >= priority.value
        ]
        if not crowds:
            return None
        size, _, name = min(crowds)
        own = self._clients.get(client)
        if -size < (0 if own is None else len(own.newcomers)) + 2:
            return None
        return self._clients[name].newcomers.last[1]

    def _before(self, place: Place) -> int:
        return sum(places.before(place) for places in self._by_wanted.values())

    def _note_crowd(self, name: str, client: _Client) -> None:
        """Only a client with two such requests or more can have two more than another."""
        crowd: tuple[Priority, _Crowd] | None = None
        if len(client.newcomers) >= 2:
            last = self._requests[client.newcomers.last[1]]
            crowd = last.priority, (-len(client.newcomers), client.newcomers.first, name)
        if client.crowd is not None:
            its_class, entry = client.crowd
            self._crowds[its_class].remove(entry)
        if crowd is not None:
            self._crowds[crowd[0]].add(crowd[1])
        client.crowd = crowd
