"""Whatever happens to some deployments, others do not notice it.

A life of two deployments is drawn: requests, parts of calls, agents that come, go, shrink and serve
other states, settings, holds, time. What must hold after every step:

* a request holds a slot of an agent of its own deployment, that serves the revision that the other
  parts of its call were given, and that was admissible or stood in when the slot was granted;
* every request is in exactly one pool, and the pools count what there is.

And the same life without one of the two gives the other the same grants, in the same order.
"""

from __future__ import annotations

import random
from typing import Final, Literal, TypeAlias

import attrs
import trio
from dispatch_world import WORK, Peer, World, status_of
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from paddler_trio.nursery_tree.agent_kinds import PADDLER, TRIO
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.pool import Hold, PoolSettings
from paddler_trio.nursery_tree.request import Request, RevisionPin
from paddler_trio.wire.trio.trio_link import Report

NAMES: Final = ("default", "coder")
STATES: Final = ("s1", "s2")

What: TypeAlias = Literal[
    "ask",
    "part",
    "join",
    "leave",
    "resize",
    "serve",
    "finish",
    "settings",
    "hold",
    "stop",
    "remove",
]


@attrs.frozen
class Event:
    deployment: str
    what: What
    pick: int
    """Which of those that there are, or how many."""
    after_s: float


EVENTS: Final = st.lists(
    st.builds(
        Event,
        st.sampled_from(NAMES),
        st.sampled_from(
            ["ask"] * 3
            + ["part", "join", "finish"] * 2
            + ["leave", "resize", "serve", "settings", "hold", "stop", "remove"]
        ),
        st.integers(0, 7),
        st.sampled_from((0.0, 0.0, 0.5, 2.0, 6.0)),
    ),
    max_size=40,
)


class Life:
    """Carries events out, and checks after each of them."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher(DispatchLimits(max_buffered=3, buffered_timeout_s=5))
        self.peers: dict[str, list[Peer]] = {name: [] for name in NAMES}
        self.requests: dict[str, list[Request]] = {name: [] for name in NAMES}
        self.pins: dict[str, RevisionPin] = {name: RevisionPin() for name in NAMES}
        self.admissible: dict[str, frozenset[str]] = {name: frozenset({"s1"}) for name in NAMES}
        self.removed: set[str] = set()
        self.grants: dict[str, list[tuple[int, str]]] = {name: [] for name in NAMES}
        self.num_agents = dict.fromkeys(NAMES, 0)

    async def live(self, events: list[Event], only: str | None) -> None:
        async with trio.open_nursery() as nursery:
            self.dispatcher.open(agents=nursery, requests=nursery)
            self.world = World(self.dispatcher, nursery)
            self._set()
            for event in events:
                await trio.sleep(event.after_s)
                if only in (None, event.deployment):
                    getattr(self, f"_{event.what}")(event.deployment, event.pick)
                    self._note_grants()
                    self._check()
            nursery.cancel_scope.cancel()
        assert not self.dispatcher._requests

    # ------------------------------------------------------------ what may happen

    def _ask(self, name: str, pick: int, pin: RevisionPin | None = None) -> None:
        request = self.dispatcher.submit(
            "r", WORK, client="abc"[pick % 3], deployment=name, pin=pin
        )
        self.requests[name].append(request)

    def _part(self, name: str, pick: int) -> None:
        """The next of a call, if the one before has left the queue; or the first of another."""
        if pick == 0:
            self.pins[name] = RevisionPin()
        same = [r for r in self.requests[name] if r.pin is self.pins[name]]
        if any(not request.left_queue.is_set() for request in same):
            return
        self._ask(name, pick, self.pins[name])

    def _join(self, name: str, pick: int) -> None:
        self.num_agents[name] += 1
        peer = self.world.agent(
            slots=pick % 3,
            kind=TRIO if pick < 6 else PADDLER,
            deployment=name,
            serves=STATES[pick % 2],
            name=f"{name} {self.num_agents[name]}",
        )
        self.peers[name].append(peer)

    def _leave(self, name: str, pick: int) -> None:
        if self.peers[name]:
            peer = self.peers[name].pop(pick % len(self.peers[name]))
            peer.connection.said_goodbye = True
            self.dispatcher.leave(peer.connection)

    def _resize(self, name: str, pick: int) -> None:
        if self.peers[name]:
            connection = self.peers[name][pick % len(self.peers[name])].connection
            connection.status = status_of(pick % 3)
            self._update(connection)

    def _serve(self, name: str, pick: int) -> None:
        if self.peers[name] and pick:
            connection = self.peers[name][pick % len(self.peers[name])].connection
            if connection.kind.reports_state:
                phase = ("serving", "loading", "failed")[pick % 3]
                connection.report = Report(phase, None, STATES[pick % 2], "m", None, None)
                self._update(connection)

    def _update(self, connection) -> None:  # type: ignore[no-untyped-def]
        connection.refresh_readiness()
        self.dispatcher.update(connection)

    def _finish(self, name: str, pick: int) -> None:
        leases = [lease for r in self.requests[name] if (lease := r.lease) is not None]
        if leases:
            leases[pick % len(leases)].deliver("GeneratedToken", [], ends=True)

    def _settings(self, name: str, pick: int) -> None:
        chosen = ({"s1"}, {"s2"}, {"s1", "s2"}, set())[pick % 4]
        self.admissible[name] = frozenset(chosen)
        self.removed.discard(name)
        self._set()

    def _remove(self, name: str, pick: int) -> None:
        if name != "default":
            self.removed.add(name)
            self._set()

    def _set(self) -> None:
        self.dispatcher.set_deployments(
            [
                PoolSettings(name=name, admissible=self.admissible[name])
                for name in NAMES
                if name not in self.removed
            ]
        )

    def _hold(self, name: str, pick: int) -> None:
        hold = None if pick < 3 else Hold("loading", trio.current_time() + pick)
        self.dispatcher.hold(name, hold)

    def _stop(self, name: str, pick: int) -> None:
        if self.requests[name]:
            self.requests[name][pick % len(self.requests[name])].stop()

    # ------------------------------------------------------------------- what holds

    def _note_grants(self) -> None:
        for name in NAMES:
            for number, request in enumerate(self.requests[name]):
                for place, agent in enumerate(request.agents):
                    if (number, f"{place} {agent}") not in self.grants[name]:
                        self.grants[name].append((number, f"{place} {agent}"))

    def _check(self) -> None:
        waiting = running = 0
        for name in NAMES:
            for request in self.requests[name]:
                lease = request.lease
                running += lease is not None
                waiting += type(request.phase).__name__ == "Buffered"
                if lease is None:
                    continue
                assert lease.agent.deployment == name == request.deployment
                if request.pin is not None:
                    assert request.pin.revision is not None or not lease.agent.kind.reports_state
        statistics = self.dispatcher.statistics()
        assert (statistics.slots_processing, statistics.requests_buffered) == (running, waiting)
        demand = self.dispatcher.pools.demand()
        assert set(demand) == set(NAMES) - self.removed
        for pool in self.dispatcher.pools.known():
            assert {request.deployment for request in pool.requests.values()} <= {pool.name}
            assert {agent.deployment for agent in pool.agents.values()} <= {pool.name}
            accepting = [agent for agent in pool.agents.values() if agent.is_accepting]
            serving = [a for a in accepting if a.revision in self.admissible[pool.name]]
            ours = [agent for agent in accepting if agent.kind.isolates]
            if any(agent.kind.isolates for agent in serving):
                assert all(agent in serving for agent in ours), "a choice of two models"


@settings(deadline=None)
@given(EVENTS)
def test_no_deployment_notices_another(events: list[Event]) -> None:
    together = Life()
    trio.run(together.live, events, None, clock=MockClock(autojump_threshold=0))
    for name in NAMES:
        alone = Life()
        trio.run(alone.live, events, name, clock=MockClock(autojump_threshold=0))
        assert together.grants[name] == alone.grants[name]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32))
def test_the_parts_of_a_call_are_given_to_one_revision(seed: int) -> None:
    """Agents of two revisions come and go; each part is on the revision of its call."""

    async def live() -> None:
        rng = random.Random(seed)
        life = Life()
        async with trio.open_nursery() as nursery:
            life.dispatcher.open(agents=nursery, requests=nursery)
            life.world = World(life.dispatcher, nursery)
            life._settings("default", 2)
            given_to: dict[RevisionPin, set[str | None]] = {}
            for _ in range(60):
                what = rng.choice(["part", "part", "join", "leave", "finish", "finish"])
                getattr(life, f"_{what}")("default", rng.randrange(6))
                for request in life.requests["default"]:
                    if request.pin is not None and request.lease is not None:
                        agent = request.lease.agent
                        given_to.setdefault(request.pin, set()).add(agent.revision)
                await trio.sleep(rng.choice([0, 0, 1]))
            nursery.cancel_scope.cancel()
        assert all(len(revisions) == 1 for revisions in given_to.values()), given_to

    trio.run(live, clock=MockClock(autojump_threshold=0))
