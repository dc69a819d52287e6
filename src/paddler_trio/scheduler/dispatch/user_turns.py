"""A client's turns go round its users: who of them takes which of the places that its requests got.

The places are the client's, one for each of its requests, as if it had no users: so a client gets
no more of the fleet by naming many. They are given out anew whenever one of its requests comes or
leaves: the first place to the first request in the users' own fair order, and so on. This is done
within *lines*, the requests of one class that ask for the same, since only these can stand for each
other.

Nothing is given out by looking at all of a line. A request keeps the place it came with on record,
and where it really stands is found by counting when it matters. There are users here from the
moment two of them wait, until nothing of the client waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeAlias

import attrs

from paddler_trio.scheduler.dispatch.agent_index import Constraint
from paddler_trio.scheduler.dispatch.crowds import Crowds, Flow
from paddler_trio.scheduler.dispatch.fair_order import FairOrder, Place, Priority, RequestKey
from paddler_trio.scheduler.dispatch.sorted_places import SortedPlaces

_LineName: TypeAlias = "tuple[Priority, Constraint, bool]"


@attrs.define
class Waiting:
    """A request that waits.

    Args:
      user: of the client; empty for none.
      place: one of its client's, on record.
      can_be_displaced: it never had a slot.
      charge: in turns, for its client and for its user.
      among_users: where it stands among those of its client, if that has several users.
    """

    key: RequestKey
    client: str
    user: str
    place: Place
    priority: Priority
    wanted: Constraint
    can_be_displaced: bool
    charge: float = 1.0
    among_users: Place | None = None

    @property
    def turn(self) -> Place:
        """The tag of its place, and the arrival: a client's own in order of arrival."""
        return (self.place[0] - self.priority.value, self.place[1])


@attrs.define
class _Line:
    """A line of as many places as requests, the n-th for the n-th."""

    places: SortedPlaces[Place] = attrs.field(factory=SortedPlaces)
    requests: SortedPlaces[Place] = attrs.field(factory=SortedPlaces)
    """The places of the requests among the users."""


@attrs.define
class UserTurns:
    """See the module docstring; of one client."""

    _order: FairOrder = attrs.field(factory=FairOrder, init=False)
    _users: dict[str, Flow] = attrs.field(factory=dict, init=False)
    _lines: dict[_LineName, _Line] = attrs.field(factory=dict, init=False)
    _crowds: Crowds = attrs.field(factory=Crowds, init=False)
    _classes: dict[RequestKey, Priority] = attrs.field(factory=dict, init=False)
    """The classes of those that can be displaced."""

    @classmethod
    def of(cls, waiting: Iterable[Waiting]) -> UserTurns:
        """Return the turns of these requests, which stand in order: as if they were added one by
        one, in less time."""
        own = cls()
        lines: defaultdict[_LineName, tuple[list[Place], list[Place]]]
        users: defaultdict[str, tuple[list[Place], list[Place]]]
        lines, users = defaultdict(lambda: ([], [])), defaultdict(lambda: ([], []))
        for request in waiting:
            place = own._place(request)
            line, user = lines[_line_of(request)], users[request.user]
            line[0].append(request.place)
            line[1].append(place)
            user[0].append(_turn(request))
            if request.can_be_displaced:
                user[1].append(place)
                own._classes[request.key] = request.priority
        for name, (places, requests) in lines.items():
            own._lines[name] = _Line(SortedPlaces.of(places), SortedPlaces.of(requests))
        for user_name, (turns, newcomers) in users.items():
            flow = Flow(SortedPlaces.of(turns), SortedPlaces.of(newcomers))
            own._users[user_name] = flow
            own._note_crowd(user_name, flow)
        return own

    def add(self, request: Waiting) -> None:
        """Note that it waits from now on. One that had a slot takes the turn that is due."""
        place = self._place(request)
        name = _line_of(request)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line()
        line.places.add(request.place)
        line.requests.add(place)
        user = self._users.get(request.user)
        if user is None:
            user = self._users[request.user] = Flow()
        user.turns.add(_turn(request))
        if request.can_be_displaced:
            user.newcomers.add(place)
            self._classes[request.key] = request.priority
            self._note_crowd(request.user, user)

    def remove(self, request: Waiting, *, is_granted: bool) -> None:
        """Note that it waits no more; its place on record is the one where it stands."""
        place = request.among_users
        assert place is not None, f"request {request.key} stands nowhere among the users"
        name = _line_of(request)
        line = self._lines[name]
        line.places.remove(request.place)
        line.requests.remove(place)
        if not line.places:
            del self._lines[name]
        user = self._users[request.user]
        user.turns.remove(_turn(request))
        if request.can_be_displaced:
            user.newcomers.remove(place)
            self._note_crowd(request.user, user)
            del self._classes[request.key]
        if not user.turns:
            del self._users[request.user]
        if is_granted:
            self._order.granted(place, request.priority)
        else:
            tag = place[0] - request.priority.value
            last = user.turns.last[0] if user.turns else None
            self._order.gave_up(request.user, tag, last, charge=request.charge)

    def correct(self, name: str, turns: float) -> None:
        """Charge a user so many turns more, or fewer if that is negative."""
        user = self._users.get(name)
        self._order.correct(name, turns, user.turns.last[0] if user is not None else None)

    def regroup(self, request: Waiting, wanted: Constraint) -> None:
        """Note that it asks for something else; its place on record is the one where it stands."""
        place = request.among_users
        assert place is not None, f"request {request.key} stands nowhere among the users"
        name = _line_of(request)
        line = self._lines[name]
        line.places.remove(request.place)
        line.requests.remove(place)
        if not line.places:
            del self._lines[name]
        request.wanted = wanted
        line = self._lines.setdefault(_line_of(request), _Line())
        line.places.add(request.place)
        line.requests.add(place)

    def standing(self, request: Waiting) -> Place:
        """Return the place where a request really stands."""
        assert request.among_users is not None
        line = self._lines[_line_of(request)]
        return line.places.at(line.requests.before(request.among_users))

    def at(self, place: Place, on_record: Waiting) -> RequestKey:
        """Return the request that really stands at the place which is ``on_record`` for another."""
        line = self._lines[_line_of(on_record)]
        return line.requests.at(line.places.before(place))[1]

    def displaceable(self, user: str, priority: Priority) -> RequestKey | None:
        """Return the last of the user with the most, if these are two more than ``user`` has."""
        name = self._crowds.largest(priority, own=self._users.get(user))
        return None if name is None else self._users[name].newcomers.last[1]

    def _place(self, request: Waiting) -> Place:
        if request.can_be_displaced:
            place = self._order.place(
                request.key,
                client=request.user,
                priority=request.priority,
                charge=request.charge,
            )
        else:
            place = self._order.due(request.key, request.priority)
        request.among_users = place
        return place

    def _note_crowd(self, name: str, user: Flow) -> None:
        last: Priority | None = None
        if len(user.newcomers) >= 2:
            last = self._classes[user.newcomers.last[1]]
        self._crowds.note(name, user, last)


def _line_of(request: Waiting) -> _LineName:
    return (request.priority, request.wanted, request.can_be_displaced)


def _turn(request: Waiting) -> Place:
    assert request.among_users is not None
    return (request.among_users[0] - request.priority.value, request.key)
