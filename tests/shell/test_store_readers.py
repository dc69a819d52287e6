"""Readers that are slow, gone or too many, and files that must stay whatever arrives."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from store_world import StoreWorld, hub_path, store_world, url_path

from hub_server import HubServer, Misbehaviour, Repository, Seen, hub_server, sha256
from paddler_trio.processes.model_store.store_layout import StoreLayout
from paddler_trio.processes.model_store.store_messages import PassedRequest
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, UrlModel

MIB = 1 << 20
BIG = random.Random(5).randbytes(12 * MIB)
FILES = {f"{name}.gguf": b"GGUF" + random.Random(name).randbytes(MIB - 4) for name in "abcd"}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server({"org/repo": Repository({"big.gguf": BIG, **FILES})}) as hub:
        yield hub


def key_of(name: str) -> str:
    return f"hub/models--org--repo/blobs/{sha256({'big.gguf': BIG, **FILES}[name])}"


async def names(world: StoreWorld) -> set[str]:
    """Of what lies in the store, once nothing arrives any more."""
    await world.settled()
    found = {name for file in await world.store.files() for name in file.names}
    return {name.partition("@")[0].removeprefix("hf:org/repo/") for name in found}


async def ended(world: StoreWorld) -> int:
    """The next request that the balancer is told has ended."""
    with trio.fail_after(50):
        message = await world.reports.receive()
    return message.id


# --- readers ------------------------------------------------------------------------------------


async def test_who_does_not_read_is_given_up_and_nobody_waits_for_it(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddler_trio.processes.model_store.store_connection.WRITE_S", 0.2)
    monkeypatch.setattr("paddler_trio.processes.model_store.store_connection.LINGER_S", 0.1)
    async with store_world(tmp_path, hub) as world:
        stuck = await world.open(hub_path("big.gguf"))
        assert (await world.ask(hub_path("big.gguf"))).body == BIG
        assert {await ended(world), await ended(world)} == {1, 2}
        assert not world.store.retention.is_in_use(key_of("big.gguf"))
        await world.settled()
        stuck_again = await world.open(hub_path("big.gguf"))
        assert await ended(world) == 3, "the same when it lies on the disk"
        for client in (stuck, stuck_again):
            await client.aclose()


async def test_a_reader_that_leaves_while_it_waits_is_forgotten_at_once(
    hub: HubServer, tmp_path: Path
) -> None:
    asked = threading.Event()

    def silent(seen: Seen) -> Misbehaviour:
        asked.set()
        return Misbehaviour(falls_silent_after=100)

    hub.misbehave = silent
    async with store_world(tmp_path, hub) as world:
        clients = [await world.open(hub_path("big.gguf")) for _ in range(3)]
        assert await trio.to_thread.run_sync(asked.wait, 10)
        await clients[0].aclose()
        assert await ended(world) == 1
        clients[1].socket.shutdown(socket.SHUT_WR)
        assert await ended(world) == 2
        (listed,) = world.arrivals.listed()
        assert listed["readers"] == 1
        for client in clients[1:]:
            await client.aclose()


async def test_a_client_that_breaks_off_in_the_middle_costs_its_connection_only(
    hub: HubServer, tmp_path: Path
) -> None:
    async with store_world(tmp_path, hub) as world:
        client = await world.open(hub_path("big.gguf"))
        await client.receive_some(10_000)
        client.socket.close()
        assert await ended(world) == 1
        assert (await world.ask(hub_path("big.gguf"))).body == BIG


async def test_too_many_arrivals_are_asked_to_come_again(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddler_trio.processes.model_store.arrival.MAX_ARRIVALS", 1)
    gate = threading.Event()
    asked = threading.Event()

    def waits(seen: Seen) -> Misbehaviour:
        asked.set()
        return Misbehaviour(waits_for=gate)

    hub.misbehave = waits
    try:
        async with store_world(tmp_path, hub) as world:
            first = await world.open(hub_path("a.gguf"))
            assert await trio.to_thread.run_sync(asked.wait, 10)
            second = await world.ask(hub_path("b.gguf"))
            assert second.status == 503
            assert second.headers["retry-after"] == "5"
            gate.set()
            while await first.receive_some():
                pass
            await world.settled()
            assert (await world.ask(hub_path("b.gguf"))).body == FILES["b.gguf"]
            await first.aclose()
    finally:
        gate.set()


async def test_a_request_without_its_descriptor_has_ended(hub: HubServer, tmp_path: Path) -> None:
    async with store_world(tmp_path, hub) as world:
        request = PassedRequest(7, "GET", "/api/v2/store", "/api/v2/store", "", (), "x", b"")
        await world.serving.handle(request, None)
        assert await ended(world) == 7


# --- what stays ---------------------------------------------------------------------------------


async def test_what_is_desired_stays_and_what_is_desired_no_more_goes(
    hub: HubServer, tmp_path: Path
) -> None:
    async with store_world(tmp_path, hub, budget_bytes=2 * MIB) as world:
        await world.store.desire((HuggingFaceModel("a.gguf", "org/repo", "main"),))
        for name in ("a.gguf", "b.gguf", "c.gguf"):
            assert (await world.ask(hub_path(name))).body == FILES[name]
            await world.settled()
        assert await names(world) == {"a.gguf", "c.gguf"}, "it was used before b, and stays"
        await world.store.desire((HuggingFaceModel("c.gguf", "org/repo", "main"),))
        assert (await world.ask(hub_path("d.gguf"))).status == 200
        assert await names(world) == {"c.gguf", "d.gguf"}


async def test_what_is_pinned_stays_across_restarts(hub: HubServer, tmp_path: Path) -> None:
    async with store_world(tmp_path, hub, budget_bytes=2 * MIB) as world:
        await world.ask(hub_path("a.gguf"))
        await world.settled()
        assert (await world.ask(f"/pins/{key_of('a.gguf')}", "PUT")).status == 204
        assert (await world.ask("/pins/hub/nothing", "PUT")).status == 404
    async with store_world(tmp_path, hub, budget_bytes=2 * MIB) as world:
        for name in ("b.gguf", "c.gguf"):
            await world.ask(hub_path(name))
            await world.settled()
        assert await names(world) == {"a.gguf", "c.gguf"}
        refused = await world.ask(f"/files/{key_of('a.gguf')}", "DELETE")
        assert refused.status == 409
        assert "pinned" in refused.body.decode()
        assert (await world.ask(f"/pins/{key_of('a.gguf')}", "DELETE")).status == 204
        assert (await world.ask(f"/files/{key_of('a.gguf')}", "DELETE")).status == 204
        assert (await world.ask(f"/files/{key_of('a.gguf')}", "DELETE")).status == 404
        assert await names(world) == {"c.gguf"}


async def test_what_is_being_sent_stays_and_is_sent_whole(hub: HubServer, tmp_path: Path) -> None:
    async with store_world(tmp_path, hub, budget_bytes=13 * MIB) as world:
        assert (await world.ask(hub_path("big.gguf"))).status == 200
        await world.settled()
        reader = await world.open(hub_path("big.gguf"))
        received = bytearray(await reader.receive_some(1000))
        await world.ask(hub_path("a.gguf"))
        await world.settled()
        refused = await world.ask(hub_path("b.gguf"))
        assert refused.status == 200, "a goes for it, the big one is in use"
        async for data in reader:
            received += data
        assert received.endswith(BIG)
        await reader.aclose()
        assert await names(world) == {"big.gguf", "b.gguf"}


async def test_a_smaller_budget_removes_what_was_used_longest_ago(
    hub: HubServer, tmp_path: Path
) -> None:
    async with store_world(tmp_path, hub) as world:
        for name in ("a.gguf", "b.gguf", "c.gguf", "a.gguf"):
            await world.ask(hub_path(name))
            await world.settled()
    async with store_world(tmp_path, hub, budget_bytes=2 * MIB) as world:
        await world.store.desire(())
        assert await names(world) == {"a.gguf", "c.gguf"}, "the last use outlives the process"


async def test_a_desired_url_stays(hub: HubServer, tmp_path: Path) -> None:
    hub.stored["x.gguf"] = FILES["a.gguf"]
    url = f"{hub.storage_url}/storage/x.gguf"
    async with store_world(tmp_path, hub, budget_bytes=2 * MIB) as world:
        await world.store.desire((UrlModel(url),))
        await world.ask(url_path(url))
        await world.settled()
        for name in ("b.gguf", "c.gguf"):
            await world.ask(hub_path(name))
            await world.settled()
        assert await names(world) == {url, "c.gguf"}


async def test_a_full_disk_is_room_that_others_make_or_a_clear_refusal(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_world(tmp_path, hub) as world:
        await world.ask(hub_path("a.gguf"))
        await world.settled()

        def lacks(layout: StoreLayout, key: str, size_bytes: int) -> int:
            return MIB // 2 if (layout.root / key_of("a.gguf")).exists() else 0

        monkeypatch.setattr("paddler_trio.processes.model_store.store.disk_lacks", lacks)
        assert (await world.ask(hub_path("b.gguf"))).body == FILES["b.gguf"]
        assert await names(world) == {"b.gguf"}, "the disk needed the room, not the budget"
        monkeypatch.setattr(
            "paddler_trio.models.download.model_download.os.statvfs",
            lambda place: type("Full", (), {"f_bavail": 10, "f_frsize": 512})(),
        )
        refused = await world.ask(hub_path("c.gguf"))
        assert refused.status == 507
        assert "5120 are free" in refused.body.decode()
