"""Large files are fetched by a child of the agent, behind everything else on the machine."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from hub_server import HubServer, Misbehaviour, Repository, Seen, hub_server
from paddler_trio.agent.children.download_process import encoded, error_of, fetch_apart, fields_of
from paddler_trio.models.download import download_progress, model_download
from paddler_trio.models.download.download_progress import DownloadProgress, ProgressMeter
from paddler_trio.models.download.model_download import ModelDownload, TransferJob
from paddler_trio.models.download.transfer import Fetched, TransferLimits
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.client.download_errors import (
    CacheFullError,
    DownloadError,
    ServerFailedError,
    SourceNotFoundError,
    StoreCannotError,
    Subject,
    TransferInterruptedError,
)
from paddler_trio.net.client.http_client import Timeouts
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, UrlModel

MIB = 1 << 20
DATA = b"GGUF" + random.Random(1).randbytes(4 * MIB + 123)
MODEL = HuggingFaceModel(filename="m-Q4_K_M.gguf", repo_id="org/repo", revision="main")
LIMITS = TransferLimits(workers=2, part_blocks=1, failures=2, first_pause_s=0.001)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server({"org/repo": Repository({MODEL.filename: DATA})}) as hub:
        yield hub


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_download, "SMALL_BYTES", MIB)


@attrs.define
class World:
    hub: HubServer
    root: Path
    seen: list[DownloadProgress | None] = attrs.field(factory=list)
    _published: trio.Event = attrs.field(factory=trio.Event, init=False)

    def publish(self, progress: DownloadProgress | None) -> None:
        self.seen.append(progress)
        self._published.set()
        self._published = trio.Event()

    async def shows(self, here_bytes: int) -> None:
        """Wait until so many are shown to be here."""
        while not any(each and each.current_bytes >= here_bytes for each in self.seen):
            await self._published.wait()

    def download(self) -> ModelDownload:
        settings = HubSettings(
            endpoint=self.hub.hub_url,
            cache=self.root / "hub",
            url_cache=self.root / "urls",
            timeouts=Timeouts(connect_s=5, silence_s=5, lock_s=5, lock_poll_s=0.01),
        )
        return ModelDownload(settings, self.publish, LIMITS, elsewhere=fetch_apart)

    def url(self, name: str) -> UrlModel:
        return UrlModel(f"{self.hub.storage_url}/storage/{name}")


@pytest.fixture
def world(hub: HubServer, tmp_path: Path) -> World:
    return World(hub, tmp_path)


class Held:
    """The storage's answers from the second one on, until a test has looked around."""

    def __init__(self, hub: HubServer) -> None:
        self.go_on, self.is_asked = threading.Event(), threading.Event()
        hub.misbehave = self.hold

    def hold(self, seen: Seen) -> Misbehaviour | None:
        if seen.headers.get("range", "").startswith("bytes=0-"):
            return None
        self.is_asked.set()
        return Misbehaviour(waits_for=self.go_on)

    async def wait(self) -> None:
        assert await trio.to_thread.run_sync(self.is_asked.wait, 30)


def children() -> set[int]:
    """Of this process, whichever thread started them; those that were waited for are none."""
    lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    return {int(pid) for text in lists for pid in text.split()}


async def test_a_large_file_is_fetched_by_a_light_process_and_every_byte_is_counted(
    hub: HubServer, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # else what is over within a quarter of a second is not shown
    monkeypatch.setattr(download_progress, "MIN_INTERVAL_S", 0.0)
    held, before, download = Held(hub), children(), world.download()
    found = []

    async def look() -> None:
        await held.wait()
        (pid,) = children() - before
        found.extend([os.sched_getscheduler(pid), os.getsid(pid) == pid])
        held.go_on.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            fetched = await download.fetch(MODEL)
    assert found == [os.SCHED_IDLE, True]
    assert children() == before
    assert fetched.path.read_bytes() == DATA
    assert download.received_bytes == len(DATA)
    assert world.seen[-1] is None
    last = [each for each in world.seen if each is not None][-1]
    assert (last.current_bytes, last.total_bytes) == (len(DATA), len(DATA))


async def test_a_url_is_large_once_its_server_has_said_so(hub: HubServer, world: World) -> None:
    hub.stored |= {"large.gguf": DATA, "small.gguf": DATA[:MIB]}
    started = []

    async def counted(job: TransferJob, meter: ProgressMeter) -> Fetched:
        started.append(job)
        return await fetch_apart(job, meter)

    download = world.download()
    download.elsewhere = counted
    with trio.fail_after(60):
        for name, data in hub.stored.items():
            assert (await download.fetch(world.url(name))).path.read_bytes() == data
    assert len(started) == 1
    ranges = [seen.headers["range"] for seen in hub.seen_by_storage()]
    assert ranges[0] == ranges[1], "asked for once more by the child, and nothing was written"


async def test_cancelling_ends_the_process_and_keeps_what_is_there(
    hub: HubServer, world: World
) -> None:
    held, before = Held(hub), children()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.download().fetch, MODEL)
            await held.wait()
            await world.shows(MIB)
            nursery.cancel_scope.cancel()
        assert children() == before
        hub.misbehave = lambda seen: None
        hub.seen.clear()
        held.go_on.set()
        assert (await world.download().fetch(MODEL)).path.read_bytes() == DATA
    assert all(not seen.headers["range"].startswith("bytes=0-") for seen in hub.seen_by_storage())


async def test_a_process_that_is_killed_is_an_interruption(hub: HubServer, world: World) -> None:
    held, before = Held(hub), children()

    async def kill() -> None:
        await held.wait()
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            with pytest.raises(TransferInterruptedError, match=r"that downloads ended \(SIGKILL\)"):
                await world.download().fetch(MODEL)
    held.go_on.set()


async def test_what_the_server_says_is_the_error_here(hub: HubServer, world: World) -> None:
    hub.misbehave = lambda seen: Misbehaviour(status=503, headers={"Retry-After": "7"})
    with trio.fail_after(60), pytest.raises(ServerFailedError, match="answered 503") as caught:
        await world.download().fetch(MODEL)
    assert caught.value.retry_after_s == 7
    assert caught.value.subject.model_path == "org/repo/main/m-Q4_K_M.gguf"


@pytest.mark.parametrize(
    "error",
    [
        SourceNotFoundError(Subject("x", is_hub=True), "nothing there (404)"),
        CacheFullError(Subject("x", is_hub=False), "10 bytes are needed"),
        ServerFailedError(Subject("x", is_hub=False), "it rests", 12.0),
        StoreCannotError(Subject("x", is_hub=False), "no room"),
    ],
)
def test_errors_cross_the_pipe(error: DownloadError) -> None:
    error.is_from_store = True
    same = error_of(fields_of(error), error.subject)
    assert type(same) is type(error)
    assert vars(same) == vars(error)
    assert same.issue == error.issue


async def test_the_process_ends_with_its_agent(hub: HubServer, world: World) -> None:
    held, download = Held(hub), world.download()
    jobs = []

    async def only_noted(job: TransferJob, meter: ProgressMeter) -> Fetched:
        jobs.append(job)
        raise TransferInterruptedError(job.remote.subject, "noted")

    download.elsewhere = only_noted
    with pytest.raises(TransferInterruptedError, match="noted"):
        await download.fetch(MODEL)
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "paddler_trio.agent.children.download_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            assert process.stdin is not None
            await process.stdin.send_all(encoded(jobs[0]))
            await held.wait()
            await process.stdin.aclose()
            assert await process.wait() == 0
        finally:
            process.kill()
            held.go_on.set()
