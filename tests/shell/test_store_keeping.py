"""What operators pin in a store, unpin and prune, and what stays whatever they ask."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pytest
import trio
from store_world import StoreWorld, hub_path, store_world, url_path

from hub_server import HubServer, Repository, hub_server, sha256
from paddler_trio.processes.model_store.store_messages import (
    RequestEnded,
    decode_message,
    encode_message,
)
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel

KIB = 1024
NAMES = ("a-Q4_K_M.gguf", "b-Q8_0.gguf", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
FILES = {name: b"GGUF" + random.Random(name).randbytes(64 * KIB) for name in NAMES}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server({"org/repo": Repository(dict(FILES)), "org/other": Repository({})}) as hub:
        yield hub


async def fill(world: StoreWorld) -> None:
    for name in NAMES:
        await world.ask(hub_path(name))
        await world.settled()


async def there(world: StoreWorld) -> set[str]:
    found = {name for file in await world.store.files() for name in file.names}
    return {name.partition("@")[0].removeprefix("hf:org/repo/") for name in found}


async def pins(world: StoreWorld, method: str, *sources: str) -> tuple[int, str]:
    query = "&".join(f"source={quote(source, safe='')}" for source in sources)
    answer = await world.ask(f"/pins?{query}", method)
    return answer.status, answer.body.decode()


async def prune(world: StoreWorld, **rules: object) -> dict[str, Any]:
    answer = await world.ask("/prune", "POST", json.dumps(rules).encode())
    assert answer.status == 200, answer.body
    return cast("dict[str, Any]", json.loads(answer.body))


async def changes(world: StoreWorld, count: int) -> list[tuple[int, str]]:
    """What the balancer is told of the next so many requests that changed something."""
    found: list[tuple[int, str]] = []
    with trio.fail_after(50):
        while len(found) < count:
            message = await world.reports.receive()
            assert isinstance(message, RequestEnded)
            if message.changed:
                found.append((message.status, message.changed))
    return found


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("hf:org/repo:Q8_0", {NAMES[1]}),
        ("hf:org/repo/b-Q8_0.gguf", {NAMES[1]}),
        ("hf:org/repo/m-00002-of-00002.gguf@main", {NAMES[2], NAMES[3]}),
        ("hf:org/repo", set(NAMES)),
    ],
)
async def test_a_pinned_model_stays_with_all_its_parts_until_it_is_unpinned(
    hub: HubServer, tmp_path: Path, source: str, kept: set[str]
) -> None:
    async with store_world(tmp_path, hub) as world:
        await fill(world)
        status, text = await pins(world, "PUT", source)
        assert status == 200, text
        assert sum(len(model["files"]) for model in json.loads(text)["models"]) == len(kept)
        assert (await prune(world, newest=0))["freed_bytes"] > 0 or kept == set(NAMES)
        assert await there(world) == kept
        assert (await pins(world, "DELETE", source))[0] == 200
        await prune(world, newest=0)
        assert await there(world) == set()
        told = await changes(world, 4)
        assert [status for status, _ in told] == [200] * 4
        assert all(word.startswith("hf:org/repo/") for word in (told[0][1], told[2][1]))


async def test_a_prune_keeps_what_is_desired_named_or_used_lately(
    hub: HubServer, tmp_path: Path
) -> None:
    async with store_world(tmp_path, hub) as world:
        await fill(world)
        await world.store.desire((HuggingFaceModel(NAMES[2], "org/repo", "main"),))
        would = await prune(world, sources=["hf:org/repo:Q4_K_M"], dry_run=True)
        assert [model["source"].partition("@")[0] for model in would["removed"]] == [
            f"hf:org/repo/{NAMES[1]}"
        ]
        assert await there(world) == set(NAMES), "a dry run removes nothing"
        assert (await prune(world, used_within_s=600))["removed"] == []
        assert (await prune(world, newest=0))["kept"] == 1
        assert await there(world) == {NAMES[2], NAMES[3]}
        assert world.store.retention.used_bytes == sum(len(FILES[n]) for n in NAMES[2:])


async def test_a_file_that_is_being_sent_stays(hub: HubServer, tmp_path: Path) -> None:
    async with store_world(tmp_path, hub) as world:
        await fill(world)
        (key,) = (f.key for f in await world.store.files() if sha256(FILES[NAMES[0]]) in f.key)
        async with world.store.used(key):
            await prune(world, newest=0)
            assert await there(world) == {NAMES[0]}


async def test_a_url_is_pinned_by_its_address_and_named_without_its_secrets(
    hub: HubServer, tmp_path: Path
) -> None:
    url = f"{hub.hub_url}/org/repo/resolve/main/{NAMES[0]}?key=s3cr3t"
    async with store_world(tmp_path, hub) as world:
        assert (await world.ask(url_path(url))).status == 200
        await world.settled()
        status, text = await pins(world, "PUT", url)
        assert status == 200, text
        assert "s3cr3t" not in text
        assert json.loads(text)["models"][0]["source"] == url.partition("?")[0]
        assert (await prune(world, newest=0))["removed"] == []
        assert (await pins(world, "DELETE", url.partition("?")[0]))[0] == 200
        assert len((await prune(world, newest=0))["removed"]) == 1


@pytest.mark.parametrize(
    ("sources", "status", "words"),
    [
        ([], 400, "0 sources"),
        (["x"] * 65, 400, "65 sources, must be 1 to 64"),
        (["ftp://host/m.gguf"], 400, "no way to get files"),
        (["hf:org/nothing"], 404, "model list"),
        (["/a/path.gguf"], 404, "model list"),
    ],
)
async def test_a_pin_of_nothing_is_refused_in_words(
    hub: HubServer, tmp_path: Path, sources: list[str], status: int, words: str
) -> None:
    async with store_world(tmp_path, hub) as world:
        answered, text = await pins(world, "PUT", *sources)
        assert (answered, words in text) == (status, True), text
        assert world.store.retention.pinned == set()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "says what to keep"),
        (b"{", "Json deserialize error"),
        (b'{"newest": -1}', "newest"),
        (b'{"sources": ["ftp://host/m"]}', "@ $.sources"),
    ],
)
async def test_a_prune_without_clear_rules_removes_nothing(
    hub: HubServer, tmp_path: Path, body: bytes, words: str
) -> None:
    async with store_world(tmp_path, hub) as world:
        await fill(world)
        answer = await world.ask("/prune", "POST", body)
        assert answer.status == 400
        assert words in answer.body.decode()
        assert await there(world) == set(NAMES)


@pytest.mark.parametrize("is_pinned", [True, False])
async def test_what_cannot_be_written_is_not_pinned_and_not_unpinned(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_pinned: bool
) -> None:
    """Whoever is told that it failed finds it as it was, now and after a restart."""
    source = "hf:org/repo:Q4_K_M"
    async with store_world(tmp_path, hub) as world:
        await fill(world)
        if is_pinned:
            assert (await pins(world, "PUT", source))[0] == 200
        before = set(world.store.retention.pinned)

        def full(path: Path, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("paddler_trio.processes.model_store.store.write_durably", full)
        assert (await pins(world, "DELETE" if is_pinned else "PUT", source))[0] == 500
        assert world.store.retention.pinned == before


async def test_the_removal_of_a_name_that_is_no_unicode_is_reported(
    hub: HubServer, tmp_path: Path
) -> None:
    """As a copy of another folder may have it."""
    uploads = tmp_path / "pushed" / "uploads"
    uploads.mkdir(parents=True)
    left = uploads / os.fsdecode(b"\xff.partial")
    left.write_bytes(b"left")
    os.utime(left, (0, 0))
    async with store_world(tmp_path, hub) as world:
        await prune(world, newest=1)
        assert not await world.store.files()
        with trio.fail_after(50):
            message = await world.reports.receive()
        assert decode_message(encode_message(message)) == message
        assert message.changed == "pushed/blobs/?"
