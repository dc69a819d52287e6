"""Find who has most waiting, and loses the last of it first when others need room.

The same for clients in a full buffer, and for the users of a client that fills it alone.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from paddler_trio.scheduler.dispatch.fair_order import Place, Priority
from paddler_trio.scheduler.dispatch.sorted_places import SortedPlaces

_Crowd: TypeAlias = "tuple[int, Place, str]"
"""The number of requests that could be displaced, negative; the first of them; whose they are."""


@attrs.define
class Flow:
    """The waiting requests of one client, or of one user of a client."""

    turns: SortedPlaces[Place] = attrs.field(factory=SortedPlaces)
    """The turns of all its requests that wait."""
    newcomers: SortedPlaces[Place] = attrs.field(factory=SortedPlaces)
    """The places of those that can be displaced."""
    crowd: tuple[Priority, _Crowd] | None = None
    """Its place among those that could make room, if it has one."""


@attrs.define
class Crowds:
    """Flows by the class of the last request that they could lose, the largest crowd first."""

    _by_class: dict[Priority, SortedPlaces[_Crowd]] = attrs.field(
        factory=lambda: {priority: SortedPlaces() for priority in Priority}, init=False
    )

    def note(self, name: str, flow: Flow, last: Priority | None) -> None:
        """Note that a flow's newcomers are others now; ``last`` is the class of the last of them,
        None if they are fewer than two: then it cannot have two more than another."""
        if flow.crowd is not None:
            its_class, entry = flow.crowd
            self._by_class[its_class].remove(entry)
        if last is None:
            flow.crowd = None
            return
        crowd = (-len(flow.newcomers), flow.newcomers.first, name)
        self._by_class[last].add(crowd)
        flow.crowd = last, crowd

    def largest(self, priority: Priority, *, own: Flow | None) -> str | None:
        """Return the flow whose last request makes room for one of ``own``: it has at least two
        more that could, and the class of the last one is not above ``priority``."""
        crowds = [
            crowd.first
            for its_class, crowd in self._by_class.items()
            if crowd and its_class.value >= priority.value
        ]
        if not crowds:
            return None
        size, _, name = min(crowds)
        return name if -size >= (0 if own is None else len(own.newcomers)) + 2 else None
