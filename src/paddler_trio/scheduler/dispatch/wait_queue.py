"""The requests that wait for a slot: in the order in which they will get one, and by what decides
about them.

* those that ask for the same, because the first of them stands for all: if it may have no free
  slot, none of them may;
* those of each client, for the turns that a client gets back when a request of it gives up, and of
  a client with several users also in the order of those (``user_turns.py``);
* in a full buffer, those that never had a slot, since only these may be displaced.

Each of these is kept in order, so no event looks at all that wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import attrs

from paddler_trio.scheduler.dispatch.agent_index import Constraint
from paddler_trio.scheduler.dispatch.crowds import Crowds, Flow
from paddler_trio.scheduler.dispatch.fair_order import Place, Priority, RequestKey
from paddler_trio.scheduler.dispatch.sorted_places import SortedPlaces
from paddler_trio.scheduler.dispatch.user_turns import UserTurns, Waiting

__all__ = ["WaitQueue", "Waiting"]


@attrs.define
class _Client(Flow):
    user: str = ""
    """The user of all that wait, if there are no ``users``."""
    users: UserTurns | None = None
    """The turns of users, from the moment two of them wait, until nothing of the client waits."""


@attrs.define
class WaitQueue:
    """See the module docstring."""

    _requests: dict[RequestKey, Waiting] = attrs.field(factory=dict, init=False)
    _by_wanted: dict[Constraint, SortedPlaces[Place]] = attrs.field(factory=dict, init=False)
    _clients: dict[str, _Client] = attrs.field(factory=dict, init=False)
    _crowds: Crowds = attrs.field(factory=Crowds, init=False)
    _holders: dict[RequestKey, RequestKey] = attrs.field(factory=dict, init=False)
    """The requests of places that are on record for another request than the one that brought
    them."""
    _num_with_users: int = attrs.field(default=0, init=False)
    """Clients that have users: usually none, and then a place is that of who brought it."""

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: RequestKey) -> bool:
        return request in self._requests

    def add(self, request: Waiting) -> int:
        """Let a request wait from now on; return how many stand before it."""
        place = request.place
        self._requests[request.key] = request
        if place[1] != request.key:
            self._holders[place[1]] = request.key
        self._by_wanted.setdefault(request.wanted, SortedPlaces()).add(place)
        client = self._clients.get(request.client)
        if client is None:
            client = self._clients[request.client] = _Client(user=request.user)
        client.turns.add(request.turn)
        if request.can_be_displaced:
            client.newcomers.add(place)
            self._note_crowd(request.client, client)
        if client.users is not None:
            client.users.add(request)
        elif request.user != client.user:
            client.users = UserTurns.of(self._on_record(turn) for turn in client.turns)
            self._num_with_users += 1
        else:
            return self._before(place)
        return self._before(client.users.standing(request))

    def remove(self, key: RequestKey, *, is_granted: bool) -> Waiting:
        """Remove a request that has a slot, or gave up; its ``place`` is the one where it stood.
        KeyError if it did not wait."""
        request = self._requests.pop(key)
        client = self._clients[request.client]
        if client.users is not None:
            self._requests[key] = request
            self._put_on_record(request, client.users.standing(request))
            client.users.remove(request, is_granted=is_granted)
            del self._requests[key]
        place = request.place
        if place[1] != key:
            del self._holders[place[1]]
        alike = self._by_wanted[request.wanted]
        alike.remove(place)
        if not alike:
            del self._by_wanted[request.wanted]
        client.turns.remove(request.turn)
        if request.can_be_displaced:
            client.newcomers.remove(place)
            self._note_crowd(request.client, client)
        if not client.turns:
            del self._clients[request.client]
            self._num_with_users -= client.users is not None
        return request

    def regroup(self, key: RequestKey, wanted: Constraint) -> None:
        """Note that a request asks for something else, where it stands. KeyError if it does not
        wait."""
        request = self._requests[key]
        client = self._clients[request.client]
        before = request.wanted
        if client.users is None:
            request.wanted = wanted
        else:
            self._put_on_record(request, client.users.standing(request))
            client.users.regroup(request, wanted)
        alike = self._by_wanted[before]
        alike.remove(request.place)
        if not alike:
            del self._by_wanted[before]
        self._by_wanted.setdefault(wanted, SortedPlaces()).add(request.place)

    def place(self, key: RequestKey) -> Place | None:
        """Return where a request stands; None if it does not wait."""
        request = self._requests.get(key)
        if request is None:
            return None
        return self._standing(request)

    def position(self, key: RequestKey) -> int | None:
        """Return how many stand before a request; None if it does not wait."""
        request = self._requests.get(key)
        if request is None:
            return None
        return self._before(self._standing(request) if self._num_with_users else request.place)

    def last_turn(self, client: str) -> float | None:
        """Return the tag of the latest of the client's requests that wait; None if none does."""
        waiting = self._clients.get(client)
        return None if waiting is None else waiting.turns.last[0]

    def correct(self, client: str, user: str, turns: float) -> None:
        """Charge a user so many turns more among those of a client, if these take turns now."""
        waiting = self._clients.get(client)
        if waiting is not None and waiting.users is not None:
            waiting.users.correct(user, turns)

    def first(self, but_not: Set[Constraint]) -> Waiting | None:
        """Return the first of those that ask for something else than these; None if there is
        none."""
        places = [
            places.first for wanted, places in self._by_wanted.items() if wanted not in but_not
        ]
        if not places:
            return None
        place = min(places)
        if self._num_with_users or self._holders:
            return self._at(place)
        return self._requests[place[1]]

    def wanted(self) -> Iterator[Constraint]:
        """Yield what requests that wait ask for, each once."""
        return iter(self._by_wanted)

    def that_want(self, wanted: Constraint) -> list[RequestKey]:
        """Return the requests that ask for exactly this, in no order."""
        return [self._on_record(place).key for place in self._by_wanted.get(wanted, ())]

    def displaceable(self, client: str, user: str, priority: Priority) -> RequestKey | None:
        """Return the last one of the client with the most requests that could make room, if these
        are at least two more than ``client`` has, and the class of that one is not above
        ``priority``. If there is none, the same of the users of ``client``."""
        own = self._clients.get(client)
        name = self._crowds.largest(priority, own=own)
        if name is not None:
            return self._at(self._clients[name].newcomers.last).key
        if own is None:
            return None
        if own.users is not None:
            return own.users.displaceable(user, priority)
        if own.user == user or len(own.newcomers) < 2:
            return None
        last = self._on_record(own.newcomers.last)
        return last.key if last.priority.value >= priority.value else None

    # ------------------------------------------------------------- private

    def _put_on_record(self, request: Waiting, place: Place) -> None:
        """Put a request on record at this place: it and the one whose place that is on record
        change places."""
        other = self._on_record(place)
        if other is not request:
            other.place, request.place = request.place, place
            for each in (other, request):
                if each.place[1] == each.key:
                    self._holders.pop(each.key, None)
                else:
                    self._holders[each.place[1]] = each.key

    def _on_record(self, place: Place) -> Waiting:
        """Return the request whose place, or turn, this is on record."""
        if not self._holders:
            return self._requests[place[1]]
        return self._requests[self._holders.get(place[1], place[1])]

    def _standing(self, request: Waiting) -> Place:
        """Return the place where a request really stands."""
        users = self._clients[request.client].users
        return request.place if users is None else users.standing(request)

    def _at(self, place: Place) -> Waiting:
        """Return the request that stands at a place."""
        request = self._on_record(place)
        users = self._clients[request.client].users
        return request if users is None else self._requests[users.at(place, request)]

    def _before(self, place: Place) -> int:
        return sum(places.before(place) for places in self._by_wanted.values())

    def _note_crowd(self, name: str, client: _Client) -> None:
        if len(client.newcomers) >= 2:
            last = self._on_record(client.newcomers.last).priority
            self._crowds.note(name, client, last)
        elif client.crowd is not None:
            self._crowds.note(name, client, None)
