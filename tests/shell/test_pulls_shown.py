"""Files that an agent fetches beside what it serves are shown as its downloads are."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from test_agent_downloads import Engines, reach, server_of
from trio.testing import MockClock

from hub_server import HubServer, Misbehaviour, Repository, hub_server
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model import cache_tasks
from paddler_trio.agent.model.cache_tasks import CacheTasks
from paddler_trio.wire.paddler.agent_issue import HuggingFaceModelDoesNotExist
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel
from paddler_trio.wire.trio.cache_commands import CacheProgress, Pull
from paddler_trio.wire.trio.trio_link import Answer, Cache

MIB = 1 << 20
DATA = random.Random(7).randbytes(3 * MIB + 5)


@attrs.frozen(eq=False)
class Heard:
    """What a command's giver hears, in order; the last is the answer."""

    answers: list[Answer] = attrs.field(factory=list)
    answered: trio.Event = attrs.field(factory=trio.Event)

    def answer(self, answer: Answer) -> None:
        self.answers.append(answer)
        self.answered.set()

    def progress(self, progress: CacheProgress) -> None:
        pass

    async def send_large(self, frame: bytes) -> None:
        self.answered.set()


@attrs.frozen(eq=False)
class World:
    hub: HubServer
    status: AgentStatus
    tasks: CacheTasks
    heard: Heard = attrs.field(factory=Heard)

    def pull(self, filename: str, wire_id: str) -> None:
        model = HuggingFaceModel(filename=filename, repo_id="org/repo", revision="main")
        self.tasks.start(Cache(wire_id, Pull(models=(model,))), self.heard)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server({"org/repo": Repository({"m.gguf": DATA})}) as hub:
        yield hub


@asynccontextmanager
async def world_of(hub: HubServer, root: Path) -> AsyncIterator[World]:
    models, tasks = server_of(hub, root, Engines()), CacheTasks()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run, models)
        await trio.testing.wait_all_tasks_blocked()
        yield World(hub, models.status, tasks)
        nursery.cancel_scope.cancel()


async def test_what_is_fetched_beside_the_model_is_in_paddlers_fields(
    hub: HubServer, tmp_path: Path
) -> None:
    goes_on = threading.Event()
    hub.misbehave = lambda seen: (
        Misbehaviour(waits_for=goes_on) if (seen.range or (0, 0))[0] else None
    )
    async with world_of(hub, tmp_path) as world:
        status = world.status
        world.pull("m.gguf", "1")
        await reach(status, lambda status: status.pull is not None)
        assert status.phase == "waiting", "what the agent does for its own state is another matter"
        await reach(status, lambda status: status.snapshot().download_filename == "m.gguf")
        snapshot, report = status.snapshot(), status.report()
        assert (snapshot.download_total, snapshot.download_indeterminate) == (len(DATA), False)
        assert report.download is not None
        assert report.download.source == "127.0.0.1"
        goes_on.set()
        await world.heard.answered.wait()
        assert status.snapshot().download_filename is None
        assert status.report().download is None


async def test_why_files_could_not_be_fetched_is_an_issue_until_they_are_or_for_a_while(
    hub: HubServer, tmp_path: Path, mock_clock: MockClock
) -> None:
    issue = HuggingFaceModelDoesNotExist("org/repo/main/n.gguf")
    async with world_of(hub, tmp_path) as world:
        status = world.status
        world.pull("n.gguf", "1")
        await reach(status, lambda status: status.snapshot().issues == (issue,))
        assert world.heard.answers[-1].code == 404
        mock_clock.jump(cache_tasks.ISSUE_S)
        await reach(status, lambda status: not status.snapshot().issues)

        world.pull("n.gguf", "2")
        await reach(status, lambda status: status.snapshot().issues == (issue,))
        hub.repositories["org/repo"].files["n.gguf"] = DATA
        world.pull("n.gguf", "3")
        await reach(status, lambda status: not status.snapshot().issues)
        assert next((tmp_path / "hub").rglob("snapshots/*/n.gguf")).read_bytes() == DATA


async def test_another_model_ends_the_issue_of_the_one_before(
    hub: HubServer, tmp_path: Path
) -> None:
    async with world_of(hub, tmp_path) as world:
        world.pull("n.gguf", "1")
        await reach(world.status, lambda status: bool(status.snapshot().issues))
        goes_on = threading.Event()
        hub.misbehave = lambda seen: Misbehaviour(waits_for=goes_on)
        world.pull("m.gguf", "2")
        await reach(world.status, lambda status: not status.snapshot().issues)
        goes_on.set()
