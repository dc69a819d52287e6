"""What the dispatcher lets others see: synchronously, in the step in which it happens.

An observer decides nothing and must not raise. It sees each request from its arrival to its end,
also one that is refused at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from paddler_trio.nursery_tree.agent_connection import AgentConnection
    from paddler_trio.nursery_tree.lease import Lease
    from paddler_trio.nursery_tree.request import Phase, Request, Results


class DispatchObserver(Protocol):
    def arrived(self, request: Request) -> None:
        """It is in the queue, and may be granted a slot, or refused, in this very step."""
        ...

    def moved(self, request: Request, left: Phase) -> None:
        """It has left this phase and is in another."""
        ...

    def lost(self, request: Request, how: str) -> None:
        """Its slot is gone, and ``moved`` follows: back into the queue or to its end. ``how``
        begins with ``lost: `` or ``handed back: ``."""
        ...

    def delivered(self, request: Request, results: Results, now_s: float) -> None:
        """These results were passed on to its client."""
        ...

    def prepared(self, lease: Lease) -> None:
        """The agent reported that it has prepared the request, how it computed the prompt, or that
        its engine preempted it; see ``lease.prepared_s``, ``prompt`` and ``preempted_s``."""
        ...

    def agent_changed(self, agent: AgentConnection, *, is_here: bool) -> None:
        """It joined, or may report something else, or has left."""
        ...


class NoObserver:
    """Sees nothing."""

    def arrived(self, request: Request) -> None: ...

    def moved(self, request: Request, left: Phase) -> None: ...

    def lost(self, request: Request, how: str) -> None: ...

    def delivered(self, request: Request, results: Results, now_s: float) -> None: ...

    def prepared(self, lease: Lease) -> None: ...

    def agent_changed(self, agent: AgentConnection, *, is_here: bool) -> None: ...
