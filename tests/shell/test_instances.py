"""The instances of an agent, in virtual time: started, drained and ended as the list has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.agent.assembly.instances import Instances
from paddler_trio.nursery_tree.instance_tree import InstanceParts
from paddler_trio.wire.trio.trio_link import InstanceWanted

DRAIN_S = 20.0


@attrs.define(eq=False)
class Fake:
    """One life of an instance; ``events`` are what happened to it, in order."""

    wanted: InstanceWanted
    work_s: float = 0
    fails: bool = False
    registered: trio.Event = attrs.field(factory=trio.Event)
    events: list[str] = attrs.field(factory=list)

    @property
    def parts(self) -> InstanceParts:
        return InstanceParts(
            name=self.wanted.deployment,
            services={"model": Sleeper(self, "model").run},
            link=Link(self),
            open_requests=self.open_requests,
            offer_nothing=lambda: self.events.append("offers nothing"),
            drain_timeout_s=DRAIN_S,
        )

    def open_requests(self, nursery: trio.Nursery) -> None:
        self.events.append("open")
        if self.work_s:
            nursery.start_soon(self._work)

    async def _work(self) -> None:
        try:
            await trio.sleep(self.work_s)
            self.events.append("answered")
        except trio.Cancelled:
            self.events.append("cut off")
            raise


@attrs.frozen(eq=False)
class Sleeper:
    fake: Fake
    name: str

    async def run(self) -> None:
        if self.fake.fails:
            raise RuntimeError("a bug of this instance")
        try:
            await trio.sleep_forever()
        finally:
            self.fake.events.append(f"{self.name} ended")


@attrs.frozen(eq=False)
class Link:
    fake: Fake

    @property
    def registered(self) -> trio.Event:
        return self.fake.registered

    async def run(self) -> None:
        self.fake.registered.set()
        await trio.sleep_forever()

    async def leave(self) -> None:
        self.fake.events.append("left")


@attrs.define(eq=False)
class Host:
    stop: trio.Event = attrs.field(factory=trio.Event)
    lives: list[Fake] = attrs.field(factory=list)
    work_s: dict[str, float] = attrs.field(factory=dict)
    failing: set[str] = attrs.field(factory=set)
    instances: Instances[InstanceWanted] = attrs.field(init=False)
    has_ended: bool = False

    def __attrs_post_init__(self) -> None:
        self.instances = Instances(self._assemble)

    def _assemble(self, wanted: InstanceWanted) -> InstanceParts:
        name = wanted.deployment
        fake = Fake(wanted, self.work_s.get(name, 0), fails=name in self.failing)
        self.lives.append(fake)
        return fake.parts

    async def want(self, *names: str, slots: int | None = None) -> None:
        self.instances.want([InstanceWanted(deployment=name, slots=slots) for name in names])
        await wait_all_tasks_blocked()

    async def run(self) -> None:
        await self.instances.run(self.stop)
        self.has_ended = True

    @property
    def names(self) -> list[str]:
        return sorted(life.wanted.deployment for life in self.lives)

    def life_of(self, name: str) -> Fake:
        """The newest one of this deployment."""
        return next(life for life in reversed(self.lives) if life.wanted.deployment == name)


@pytest.fixture(autouse=True)
def is_quiet() -> Iterator[None]:
    with capture_logs():  # tracebacks take longer to print than all of this
        yield


@asynccontextmanager
async def host_of(**options: object) -> AsyncIterator[Host]:
    host = Host(**options)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.run)
        yield host
        nursery.cancel_scope.cancel()


ENDED = ["open", "offers nothing", "left", "model ended"]


async def test_each_deployment_has_one_instance_and_the_same_list_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    async with host_of() as host:
        await host.want("a", "b")
        await host.want("b", "a")
        assert host.names == ["a", "b"]
        assert repr(host.instances) == "<Instances: 2 wanted, 2 running>"
        await host.want("b", "c")
        assert host.names == ["a", "b", "c"]
        a, b, c = map(host.life_of, "abc")
        assert a.events == ENDED
        assert b.events == c.events == ["open"]


async def test_one_that_is_not_listed_any_more_finishes_its_work(
    autojump_clock: MockClock,
) -> None:
    async with host_of(work_s={"a": 5, "b": 500}) as host:
        await host.want("a", "b")
        await host.want()
        a, b = map(host.life_of, "ab")
        assert a.events == b.events == ["open", "offers nothing"]
        await trio.sleep(6)
        assert a.events == ["open", "offers nothing", "answered", "left", "model ended"]
        await trio.sleep(DRAIN_S)
        assert b.events == ["open", "offers nothing", "cut off", "left", "model ended"]


async def test_one_that_is_listed_again_begins_when_the_one_before_has_ended(
    autojump_clock: MockClock,
) -> None:
    async with host_of(work_s={"a": 5}) as host:
        await host.want("a")
        await host.want()
        await host.want("a")
        assert len(host.lives) == 1
        await trio.sleep(6)
        assert host.names == ["a", "a"]
        assert host.lives[1].events[0] == "open"


async def test_other_slots_are_another_instance(autojump_clock: MockClock) -> None:
    async with host_of() as host:
        await host.want("a", slots=2)
        await host.want("a", slots=3)
        first, second = host.lives
        assert first.events == ENDED
        assert second.wanted.slots == 3


async def test_one_that_fails_is_started_again_and_ends_no_other(
    autojump_clock: MockClock,
) -> None:
    async with host_of(failing={"bad"}) as host:
        await host.want("bad", "good")
        await trio.sleep(2)
        assert host.names.count("good") == 1
        assert host.names.count("bad") > 2
        assert host.life_of("good").events == ["open"]
        host.failing.clear()
        await trio.sleep(10)
        lives = len(host.lives)
        await trio.sleep(100)
        assert len(host.lives) == lives, "it lives now"


async def test_one_that_waits_for_its_restart_ends_at_once(autojump_clock: MockClock) -> None:
    async with host_of(failing={"bad"}) as host:
        await host.want("bad")
        await trio.sleep(30)
        began_s = trio.current_time()
        await host.want()
        assert trio.current_time() == began_s
        assert repr(host.instances) == "<Instances: 0 wanted, 0 running>"


async def test_all_drain_at_the_agents_stop_and_none_begins_after_it(
    autojump_clock: MockClock,
) -> None:
    async with host_of(work_s={"a": 5}) as host:
        await host.want("a", "b")
        host.stop.set()
        await wait_all_tasks_blocked()
        await host.want("a", "b", "c")
        assert host.names == ["a", "b"]
        assert not host.has_ended
        await trio.sleep(6)
        assert host.has_ended
        a, b = map(host.life_of, "ab")
        assert a.events == ["open", "offers nothing", "answered", "left", "model ended"]
        assert b.events == ENDED
