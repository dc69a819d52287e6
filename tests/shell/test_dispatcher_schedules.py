"""Random lives of a dispatcher, each from one seed: agents come and go, clients read or leave.

A simulated answer counts: its first token is 0, the next 1, and an agent of ours that continues one
goes on from the tokens it was sent; the tokens of another model are other numbers. So a client must
hear 0, 1, 2, ... without gap or repetition, however often the agents under it were lost, and then
exactly one ending.
"""

from __future__ import annotations

import random

import attrs
import pytest
import trio
from dispatch_world import DONE, WORK, Peer, World
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.nursery_tree import request as request_module
from paddler_trio.nursery_tree.agent_kinds import PADDLER, TRIO
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import Lease, Request
from paddler_trio.nursery_tree.step_results import RawResult
from paddler_trio.scheduler.dispatch.fair_order import Priority
from paddler_trio.wire.paddler.messages import AgentRequest, StopRespondingTo
from paddler_trio.wire.trio.trio_link import Start

STEPS = 80
SEEDS_PER_TEST = 30
SEND_LIMIT_STEPS = 4


@attrs.define(eq=False)
class Agent:
    """Works on what it is sent, when the schedule tells it to."""

    peer: Peer
    counts: dict[str, int] = attrs.field(factory=dict)
    """The next number of each request it works on."""
    stopped: set[str] = attrs.field(factory=set)

    def tokens(self, first: int, count: int) -> list[int]:
        """What this agent's model draws at these positions."""
        shift = 0 if self.peer.connection.model == "m" else 1000
        return [*range(first + shift, first + shift + count)]

    def read(self) -> None:
        for frame in self.peer.received():
            match frame:
                case Start(id=wire_id, tokens=tokens):
                    assert list(tokens) == self.tokens(0, len(tokens)), "not its own to continue"
                    assert wire_id not in self.counts, "an id was used twice"
                    self.counts[wire_id] = len(tokens)
                case AgentRequest(wire_id):
                    self.counts[wire_id] = 0
                case StopRespondingTo(wire_id):
                    self.stopped.add(wire_id)

    def leases(self) -> list[Lease]:
        """Those it was not told to stop, whose results somebody waits for."""
        self.read()
        found = [self.peer.connection.lease(wire_id) for wire_id in self.counts]
        return [lease for lease in found if lease is not None]

    def says(self, lease: Lease, *, count: int, done: bool) -> None:
        first = self.counts[lease.wire_id]
        self.counts[lease.wire_id] += count
        results: list[RawResult] = [
            {"ContentToken": str(number)} for number in range(first, first + count)
        ]
        if done:
            results.append(DONE)
        known = self.tokens(first, count) if self.peer.connection.kind.reports_tokens else None
        lease.deliver("GeneratedToken", results, ends=done, tokens=known)
        if done:
            del self.counts[lease.wire_id]


@attrs.define(eq=False)
class Client:
    """Reads to the end, or stops after ``patience`` steps; pauses after each."""

    request: Request
    patience: int
    pause_s: float
    heard: list[str] = attrs.field(factory=list)
    endings: int = 0
    read_all: bool = False

    async def read(self) -> None:
        async for step in self.request.outbox:
            for result in step.results:
                assert isinstance(result, dict)
                assert not self.endings, "something came after the ending"
                if "Done" in result:
                    self.endings += 1
                else:
                    self.heard.append(str(result["ContentToken"]))
            await trio.sleep(self.pause_s)
            self.patience -= 1
            if self.patience == 0:
                self.request.stop()
                return
        self.read_all = True
        self.request.stop()

    def check(self) -> None:
        assert self.request.is_over
        assert self.heard == [str(number) for number in range(len(self.heard))]
        if self.read_all:
            other_endings = (self.request.failure is not None) + self.request.is_stopped
            assert self.endings + other_endings == 1, "not exactly one ending"


class Schedule:
    """One life: what happens next is drawn from the seed, and each step is checked."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        pick = self.rng.choice
        self.dispatcher = Dispatcher(
            DispatchLimits(
                max_buffered=pick([0, 1, 5]),
                buffered_timeout_s=pick([0, 1, 8]),
                item_timeout_s=pick([0, 1, 5, 30]),
                stop_confirmation_s=pick([0.5, 5]),
            )
        )
        self.agents: list[Agent] = []
        self.clients: list[Client] = []

    async def live(self) -> None:
        async with trio.open_nursery() as outer:
            self.outer = outer
            async with trio.open_nursery() as requests:
                self.dispatcher.open(agents=requests, requests=requests)
                self.world = World(self.dispatcher, requests)
                for _ in range(STEPS):
                    await self.step()
                    self.check_books()
                await self.rng.choice([self.finish_all, self.drain, self.cancel])()
            outer.cancel_scope.deadline = trio.current_time() + 1000
        assert self.world.nothing_is_left()
        for client in self.clients:
            client.check()
        for agent in self.agents:
            assert agent.peer.connection.slots_processing == 0
            agent.read()
            assert agent.counts.keys() <= agent.stopped, "it works on what nobody wants"

    def check_books(self) -> None:
        statistics = self.dispatcher.statistics()
        requests = self.dispatcher._requests.values()
        leases = {lease for request in requests if (lease := request.lease) is not None}
        assert statistics.slots_processing == len(leases), "a slot without a request, or two"
        assert statistics.requests_buffered == len(requests) - len(leases), "one waits uncounted"
        for agent in self.agents:
            connection = agent.peer.connection
            its = {lease for lease in leases if lease.agent is connection}
            assert its == set(connection._leases.values()), "the agent's leases are others"
            assert self.dispatcher.slots_processing(connection.key) == len(its)

    # ------------------------------------------------------------ what may happen

    async def step(self) -> None:
        steps = (
            [self.submit] * 5
            + [self.tokens] * 10
            + [self.finish] * 4
            + [self.confirm] * 3
            + [self.join] * 2
            + [self.sleep] * 4
            + [self.leave, self.resize, self.hand_back, self.break_frame, self.stop]
        )
        await self.rng.choice(steps)()
        if self.rng.random() < 0.5:  # else the next thing happens in the same tick
            await trio.lowlevel.checkpoint()

    async def submit(self) -> None:
        request = self.dispatcher.submit(
            "r",
            WORK,
            client=self.rng.choice("ab"),
            priority=self.rng.choice([*Priority]),
        )
        client = Client(request, self.rng.choice([1, 3, 99, 99]), self.rng.choice([0, 0, 0.3, 3]))
        self.clients.append(client)
        self.outer.start_soon(client.read)

    async def join(self) -> None:
        if len(self.agents) < 4:
            peer = self.world.agent(
                slots=self.rng.randint(0, 3),
                kind=TRIO if self.rng.random() < 0.8 else PADDLER,
                model=self.rng.choice(["m", "m", "m", "other"]),
            )
            self.agents.append(Agent(peer))

    async def leave(self) -> None:
        if self.agents:
            agent = self.agents.pop(self.rng.randrange(len(self.agents)))
            agent.peer.connection.said_goodbye = self.rng.random() < 0.5
            self.dispatcher.leave(agent.peer.connection)
            agent.peer.connection.close()

    async def resize(self) -> None:
        if self.agents:
            connection = self.rng.choice(self.agents).peer.connection
            connection.status = attrs.evolve(connection.status, slots_total=self.rng.randint(-1, 3))
            connection.refresh_readiness()
            self.dispatcher.update(connection)

    def a_lease(self) -> tuple[Agent, Lease] | None:
        found = [(agent, lease) for agent in self.agents for lease in agent.leases()]
        return self.rng.choice(found) if found else None

    async def tokens(self) -> None:
        if (found := self.a_lease()) is not None:
            found[0].says(found[1], count=self.rng.randint(0, 3), done=False)

    async def finish(self) -> None:
        if (found := self.a_lease()) is not None:
            found[0].says(found[1], count=self.rng.randint(0, 1), done=True)

    async def confirm(self) -> None:
        for agent in self.agents:
            for lease in agent.leases():
                if lease.wire_id in agent.stopped:
                    agent.says(lease, count=0, done=True)

    async def hand_back(self) -> None:
        if (found := self.a_lease()) is not None:
            agent, lease = found
            for _ in range(self.rng.randint(1, 2)):
                suspects = self.rng.choice([0, 0, 1, 3])
                self.dispatcher.hand_back(lease, "engine gone", suspects=suspects)
            del agent.counts[lease.wire_id]

    async def break_frame(self) -> None:
        """As the socket does: the request is told, then the link is closed."""
        if (found := self.a_lease()) is not None:
            agent, lease = found
            lease.broken_frame("no result")
            self.agents.remove(agent)
            self.dispatcher.leave(agent.peer.connection)

    async def stop(self) -> None:
        if self.clients:
            self.rng.choice(self.clients).request.stop()

    async def sleep(self) -> None:
        await trio.sleep(self.rng.choice([0.1, 0.5, 1, 5]))

    # ------------------------------------------------------------------- the end

    async def finish_all(self) -> None:
        """Agents end whatever they have until nobody wants anything any more."""
        while self.dispatcher._requests:
            for agent in self.agents:
                for lease in agent.leases():
                    agent.says(lease, count=1, done=True)
            await trio.sleep(0.1)

    async def drain(self) -> None:
        self.dispatcher.drain()
        refused = self.dispatcher.submit("late", WORK)
        assert refused.failure is not None
        assert refused.failure.code == 503
        await self.finish_all()

    async def cancel(self) -> None:
        self.dispatcher.is_draining = self.rng.random() < 0.5
        self.world.nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await wait_all_tasks_blocked()


@pytest.mark.parametrize("first", range(0, 240, SEEDS_PER_TEST))
def test_whatever_happens_every_request_ends_once_and_nothing_leaks(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_module, "OUTBOX_STEPS", SEND_LIMIT_STEPS)
    for seed in range(first, first + SEEDS_PER_TEST):
        try:
            trio.run(Schedule(seed).live, clock=MockClock(autojump_threshold=0))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
