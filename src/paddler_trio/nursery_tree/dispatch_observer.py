"""Observers see what the dispatcher does: synchronously, in the step in which it happens.

An observer decides nothing and must not raise. It sees each request from its arrival to its end,
also one that is refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.request import Lease, Phase, Request
from paddler_trio.nursery_tree.step_results import Results


class DispatchObserver:
    """Sees nothing; a subclass has a method for each event that it wants to see."""

    def arrived(self, request: Request) -> None:
        """A request is in the queue, and may be granted a slot, or refused, in this very step."""

    def moved(self, request: Request, left: Phase) -> None:
        """A request has left this phase and is in another."""

    def lost(self, request: Request, how: str) -> None:
        """The slot of a request is gone, and ``moved`` follows: back into the queue or to its end.
        ``how`` begins with ``lost: `` or ``handed back: ``."""

    def delivered(self, request: Request, results: Results, now_s: float) -> None:
        """These results were passed on to the client of a request."""

    def prepared(self, lease: Lease) -> None:
        """The agent reported that it has prepared a request, how it computed the prompt, or that
        its engine preempted it; see ``lease.prepared_s``, ``prompt`` and ``preempted_s``."""

    def agent_changed(self, agent: AgentConnection, *, is_here: bool) -> None:
        """An agent joined, or may report something else, or has left."""


class Observers(DispatchObserver):
    """Each of them sees what happens, in this order."""

    def __init__(self, observers: Iterable[DispatchObserver] = ()) -> None:
        self.all = tuple(observers)
        self._delivered: tuple[Callable[[Request, Results, float], None], ...] = tuple(
            each.delivered
            for each in self.all
            if type(each).delivered is not DispatchObserver.delivered  # each token costs
        )

    def arrived(self, request: Request) -> None:
        for each in self.all:
            each.arrived(request)

    def moved(self, request: Request, left: Phase) -> None:
        for each in self.all:
            each.moved(request, left)

    def lost(self, request: Request, how: str) -> None:
        for each in self.all:
            each.lost(request, how)

    def delivered(self, request: Request, results: Results, now_s: float) -> None:
        for see in self._delivered:
            see(request, results, now_s)

    def prepared(self, lease: Lease) -> None:
        for each in self.all:
            each.prepared(lease)

    def agent_changed(self, agent: AgentConnection, *, is_here: bool) -> None:
        for each in self.all:
            each.agent_changed(agent, is_here=is_here)
