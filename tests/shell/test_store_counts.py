"""What a store counts for the metrics of its balancer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from store_world import StoreWorld, hub_path, store_world

from hub_server import HubServer, Repository, hub_server
from paddler_trio.processes.model_store.store_messages import StoreCounts

SIZE = 512 * 1024
FILES = {f"{name}.gguf": b"GGUF" + random.Random(name).randbytes(SIZE - 4) for name in "abc"}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server({"org/repo": Repository(dict(FILES))}) as hub:
        yield hub


def counts_of(world: StoreWorld) -> StoreCounts:
    return world.store.counters.counts(
        files=world.store.num_files,
        used_bytes=world.store.retention.used_bytes,
        downloads_running=world.arrivals.num_running,
        arriving_bytes=world.arrivals.received_bytes,
    )


async def test_bytes_from_outside_count_once_and_bytes_sent_each_time(
    hub: HubServer, tmp_path: Path
) -> None:
    async with store_world(tmp_path, hub) as world:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(world.ask, hub_path("a.gguf"))
        await world.settled()
        await world.ask(hub_path("a.gguf"))
        counts = counts_of(world)
        assert counts.found[2] == 1, "one request began the download"
        assert sum(counts.found) == 4
        assert counts.fetched_bytes == SIZE
        assert counts.sent_bytes == 4 * SIZE
        assert (counts.files, counts.used_bytes) == (1, SIZE)
        assert (counts.downloads_running, counts.downloads) == (0, (1, 0, 0))


async def test_evictions_and_downloads_that_fail_are_counted(
    hub: HubServer, tmp_path: Path
) -> None:
    async with store_world(tmp_path, hub, budget_bytes=2 * SIZE) as world:
        for name in FILES:
            await world.ask(hub_path(name))
            await world.settled()
        assert counts_of(world).evictions == 1
        hub.repositories["org/repo"].files["large.gguf"] = b"GGUF" + bytes(3 * SIZE)
        assert (await world.ask(hub_path("large.gguf"))).status == 507
        await world.settled()
        assert counts_of(world).evictions == 1, "what is refused costs nothing"
        assert counts_of(world).downloads == (3, 1, 0)


async def test_pushed_bytes_are_counted_with_those_of_a_part(
    hub: HubServer, tmp_path: Path
) -> None:
    async with store_world(tmp_path, hub) as world:
        part = {"content_range": "bytes 0-999/5000"}
        answer = await world.ask(f"/blobs/sha256/{'0' * 64}", "PUT", bytes(1000), **part)
        assert answer.status == 202
        counts = counts_of(world)
        assert (counts.pushed_bytes, counts.fetched_bytes) == (1000, 0)
