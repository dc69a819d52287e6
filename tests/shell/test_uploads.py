"""Uploads into a model store: resumed, compared, bounded; and agents that fetch what was pushed."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import pytest
import trio
from store_world import StoreWorld, served_over_http, store_world

from hub_server import HubServer, hub_server
from paddler_trio.models.cache.cache_inventory import take_inventory
from paddler_trio.models.cache.cache_prune import remove_model
from paddler_trio.models.cache.cache_verification import verified
from paddler_trio.models.download.model_download import FetchedModel, ModelDownload
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.pushed.pushed_model import Manifest, PushedFile
from paddler_trio.net.client.download_errors import (
    DownloadError,
    PushedModelMissingError,
    SourceMalformedError,
)
from paddler_trio.processes.model_store import upload_file, upload_routes
from paddler_trio.processes.model_store.store_connection import StoreConnection
from paddler_trio.processes.model_store.upload_file import EXPIRY_S, UploadFile
from paddler_trio.wire.paddler.desired_state import UrlModel

MIB = 1 << 20
DATA = random.Random(11).randbytes(5 * MIB + 3)
SHA256 = hashlib.sha256(DATA).hexdigest()
BLOB = f"/blobs/sha256/{SHA256}"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as hub:
        yield hub


@attrs.frozen
class Pushing:
    """A store and a client that pushes to it."""

    world: StoreWorld
    url: str
    http: httpx.AsyncClient
    root: Path

    async def put(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.put(f"{self.url}{path}", content=body, headers=sent)

    async def part(self, start: int, stop: int, path: str = BLOB) -> httpx.Response:
        content_range = f"bytes {start}-{stop - 1}/{len(DATA)}"
        return await self.put(path, DATA[start:stop], Content_Range=content_range)

    async def here(self) -> int | None:
        """How much of the file has arrived; None if it is whole."""
        answer = await self.http.head(f"{self.url}{BLOB}")
        return None if answer.status_code == 200 else int(answer.headers["upload-offset"])

    async def push(self, **files: bytes) -> Manifest:
        """A whole model; a file called ``mmproj`` is its projection."""
        pushed = {
            name: PushedFile(f"{name}.gguf", len(data), hashlib.sha256(data).hexdigest())
            for name, data in files.items()
        }
        projection = pushed.pop("mmproj", None)
        manifest = Manifest(tuple(pushed.values()), projection)
        for data in files.values():
            path = f"/blobs/sha256/{hashlib.sha256(data).hexdigest()}"
            assert (await self.put(path, data)).is_success
        answer = await self.put(f"/manifests/sha256/{manifest.sha256}", manifest.text)
        assert (answer.status_code, answer.text) == (201, manifest.source(manifest.files[0]))
        return manifest

    async def fetch(self, url: str, store: str | None = "") -> FetchedModel:
        """As an agent whose balancer has this store, or none."""
        settings = self.settings
        if store is not None:
            settings = settings.through_store(store or self.url, None)
        return await ModelDownload(settings, lambda progress: None).fetch(UrlModel(url))

    @property
    def settings(self) -> HubSettings:
        return HubSettings(cache=self.root / "agent/hub", url_cache=self.root / "agent/ours/urls")


@asynccontextmanager
async def pushing(root: Path, hub: HubServer, budget_bytes: int = 10**9) -> AsyncIterator[Pushing]:
    async with (
        store_world(root / "store", hub, budget_bytes=budget_bytes) as world,
        served_over_http(world) as (url, _),
        httpx.AsyncClient(trust_env=False, timeout=30) as http,
    ):
        yield Pushing(world, url, http, root)


# --------------------------------------------------------------------------------- uploads


async def test_a_file_arrives_whole_and_is_there_once(hub: HubServer, tmp_path: Path) -> None:
    async with pushing(tmp_path, hub) as client:
        assert await client.here() == 0
        assert (await client.put(BLOB, DATA)).status_code == 201
        assert await client.here() is None
        assert (await client.http.get(f"{client.url}{BLOB}")).content == DATA
        assert (await client.put(BLOB, DATA)).status_code == 200
        listed = (await client.http.get(client.url)).json()["files"]
        assert [file["sha256"] for file in listed] == [SHA256]
        assert listed[0]["is_verified"]


async def test_an_upload_goes_on_where_it_broke_off(hub: HubServer, tmp_path: Path) -> None:
    async with pushing(tmp_path, hub) as client:
        answer = await client.part(0, MIB)
        assert (answer.status_code, answer.headers["upload-offset"]) == (202, str(MIB))
        gap = await client.part(2 * MIB, 3 * MIB)
        assert (gap.status_code, gap.headers["upload-offset"]) == (409, str(MIB))
        host, _, port = client.url.removeprefix("http://").partition("/")[0].partition(":")
        async with await trio.open_tcp_stream(host, int(port)) as broken:
            head = (
                f"PUT /api/v2/store{BLOB} HTTP/1.1\r\nHost: {host}\r\n"
                f"Content-Length: {len(DATA) - MIB}\r\n"
                f"Content-Range: bytes {MIB}-{len(DATA) - 1}/{len(DATA)}\r\n\r\n"
            )
            await broken.send_all(head.encode() + DATA[MIB : 3 * MIB])
        with trio.fail_after(30):
            while (await client.here()) != 3 * MIB:  # what came before the client was killed
                await trio.lowlevel.checkpoint()
        with trio.fail_after(30):
            while (rest := await client.part(3 * MIB - 5, len(DATA))).status_code == 409:
                pass  # the broken one is still being put away
        assert rest.status_code == 201
        assert (await client.http.get(f"{client.url}{BLOB}")).content == DATA


async def test_what_has_another_hash_never_becomes_a_file(hub: HubServer, tmp_path: Path) -> None:
    async with pushing(tmp_path, hub) as client:
        bad = await client.put(BLOB, b"x" + DATA[1:])
        assert bad.status_code == 422
        assert f"not {SHA256}: it is dropped" in bad.text
        assert await client.here() == 0
        # the same for bytes from another time that a crash of the machine damaged
        await client.part(0, MIB)
        partial = client.world.store.layout.uploads / f"{SHA256}.partial"
        with partial.open("r+b") as file:
            file.write(b"damaged")
        assert (await client.part(MIB, len(DATA))).status_code == 422
        assert await client.here() == 0
        assert (await client.http.get(f"{client.url}{BLOB}")).status_code == 404
        assert (await client.put(BLOB, DATA)).status_code == 201


async def test_the_budget_counts_what_is_on_its_way(hub: HubServer, tmp_path: Path) -> None:
    async with pushing(tmp_path, hub, budget_bytes=len(DATA) + 100) as client:
        over = await client.put(
            f"/blobs/sha256/{'0' * 64}", b"x", Content_Range="bytes 0-0/9999999"
        )
        assert over.status_code == 507
        assert "the model store may take" in over.text
        await client.part(0, MIB)
        listed = (await client.http.get(client.url)).json()
        assert MIB <= listed["used_bytes"] <= len(DATA)
        small = hashlib.sha256(b"s" * 200).hexdigest()
        assert (await client.put(f"/blobs/sha256/{small}", b"s" * 200)).status_code == 201
        assert await client.here() == MIB, "both fit, as long as it is not whole"
        assert (await client.part(MIB, len(DATA))).status_code == 201
        assert (await client.http.get(f"{client.url}/blobs/sha256/{small}")).status_code == 404


async def test_uploads_are_few_at_once_and_one_for_each_file(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_routes, "MAX_UPLOADS", 1)
    async with pushing(tmp_path, hub) as client:
        length, whole = str(len(DATA)), f"bytes 0-{len(DATA) - 1}/{len(DATA)}"
        headers = {"content_length": length, "content_range": whole}
        async with await client.world.open(BLOB, "PUT", **headers) as first:
            await first.send_all(DATA[:MIB])
            with trio.fail_after(30):
                while not client.world.store.retention.is_arriving(f"pushed/blobs/{SHA256}"):
                    await trio.lowlevel.checkpoint()
            again = await client.put(BLOB, DATA)
            assert (again.status_code, again.headers["retry-after"]) == (409, "1")
            other = await client.put(f"/blobs/sha256/{'0' * 64}", b"x")
            assert other.status_code == 503


async def test_a_client_that_falls_silent_is_given_up_and_keeps_its_bytes(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddler_trio.processes.model_store.store_connection.READ_S", 0.2)
    async with pushing(tmp_path, hub) as client:
        headers = {"content_length": str(len(DATA))}
        async with await client.world.open(BLOB, "PUT", **headers) as silent:
            await silent.send_all(DATA[: MIB + 7])
            with trio.fail_after(30):
                answer = b""
                while b"\r\n\r\n" not in answer:
                    answer += bytes(await silent.receive_some(4096))
            assert answer.startswith(b"HTTP/1.1 408")
        assert await client.here() == MIB + 7


async def test_a_client_that_waits_for_a_hash_is_sent_that_it_is_computed(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_least_one = threading.Event()
    send, sha256 = StoreConnection.send, UploadFile.sha256

    async def noted(self: StoreConnection, data: bytes) -> None:
        await send(self, data)
        if data.startswith(b"HTTP/1.1 102"):
            at_least_one.set()

    def slow(self: UploadFile, on_chunk: Callable[[int], None]) -> str:
        assert at_least_one.wait(30)
        return sha256(self, on_chunk)

    monkeypatch.setattr(upload_routes, "PROCESSING_S", 0.01)
    monkeypatch.setattr(StoreConnection, "send", noted)
    monkeypatch.setattr(UploadFile, "sha256", slow)
    async with pushing(tmp_path, hub) as client:
        assert (await client.put(BLOB, DATA)).status_code == 201


async def test_uploads_that_nobody_goes_on_with_expire(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pushing(tmp_path, hub) as client:
        uploads = client.world.store.layout.uploads
        await client.part(0, MIB)
        old_s = time.time() - EXPIRY_S - 1
        os.utime(uploads / f"{SHA256}.partial", (old_s, old_s))
        monkeypatch.setattr(upload_file, "MAX_LEFT", 2)
        for number in range(4):
            digest = f"{number}" * 64
            await client.put(f"/blobs/sha256/{digest}", b"x", Content_Range="bytes 0-0/5")
            at_s = time.time() + number
            os.utime(uploads / f"{digest}.partial", (at_s, at_s))
        left = sorted(path.name[0] for path in uploads.iterdir())
        assert left == ["1", "2", "3"], "two that were left, and the newest"
        assert client.world.store.retention.used_bytes < MIB


@pytest.mark.parametrize(
    ("content_range", "status", "words"),
    [
        ("bytes 0-9/10", 400, "Content-Range has 10 bytes, Content-Length 3"),
        ("bytes 5-4/10", 400, "bytes 5 to 5 of 10"),
        ("bytes 0-2/2", 400, "bytes 0 to 3 of 2"),
        ("bytes 0-2/*", 400, "not bytes FIRST-LAST/TOTAL"),
        ("0-2", 400, "not bytes FIRST-LAST/TOTAL"),
        (f"bytes 0-2/{2**50 + 1}", 413, "the limit is"),
        (f"bytes 0-2/{10**18}", 413, "the limit is"),
        (f"bytes {10**17}-{10**17 + 2}/{2**50}", 400, "bytes"),
    ],
)
async def test_ranges_that_cannot_be_are_refused(
    hub: HubServer, tmp_path: Path, content_range: str, status: int, words: str
) -> None:
    async with pushing(tmp_path, hub) as client:
        answer = await client.put(BLOB, b"abc", Content_Range=content_range)
        assert (answer.status_code, words in answer.text) == (status, True), answer.text
        assert await client.here() == 0


async def test_other_bad_requests_are_refused_in_words(hub: HubServer, tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"abc"

    async with pushing(tmp_path, hub) as client:
        chunked = await client.http.put(f"{client.url}{BLOB}", content=chunks())
        assert chunked.status_code == 411
        assert (await client.put("/blobs/sha256/UPPER", b"x")).status_code == 400
        assert (await client.put(BLOB, b"")).status_code == 400


async def test_a_manifest_needs_its_name_its_form_and_its_files(
    hub: HubServer, tmp_path: Path
) -> None:
    async with pushing(tmp_path, hub) as client:
        manifest = Manifest((PushedFile("m.gguf", len(DATA), SHA256),), None)
        path = f"/manifests/sha256/{manifest.sha256}"
        early = await client.put(path, manifest.text)
        assert (early.status_code, early.text) == (409, "push these files first: m.gguf")
        assert (await client.put(BLOB, DATA)).status_code == 201
        other = await client.put(path, manifest.text + b" ")
        assert other.status_code == 422
        loose = manifest.text.replace(b",", b", ")
        digest = hashlib.sha256(loose).hexdigest()
        refused = await client.put(f"/manifests/sha256/{digest}", loose)
        assert (refused.status_code, "canonical" in refused.text) == (400, True)
        assert (await client.put(path, b"x" * (MIB + 1))).status_code == 413
        assert (await client.put(path, manifest.text)).status_code == 201
        got = await client.http.get(f"{client.url}{path}")
        assert got.content == manifest.text


# ------------------------------------------------------------------------------ on agents


async def test_an_agent_fetches_the_files_of_a_pushed_model_and_then_needs_no_store(
    hub: HubServer, tmp_path: Path
) -> None:
    parts = {f"m-0000{n}-of-00002": DATA[n:] for n in (1, 2)}
    async with pushing(tmp_path, hub) as client:
        manifest = await client.push(**parts, mmproj=b"sees")
        source = manifest.source(manifest.files[0])
        fetched = await client.fetch(source)
        folder = client.settings.pushed_cache / manifest.sha256
        assert fetched.path == folder / "m-00001-of-00002.gguf"
        assert [path.read_bytes() for path in fetched.files] == list(parts.values())
        assert not (folder / "mmproj.gguf").exists()
        assert manifest.projection is not None
        seen = await client.fetch(manifest.source(manifest.projection))
        assert seen.path.read_bytes() == b"sees"
        assert await client.fetch(source, None) == fetched, "without a store, from the cache"
        model, projection = take_inventory(client.settings).models
        assert (model.source, model.size_bytes) == (source, sum(map(len, parts.values())))
        assert model.verified_s is not None
        assert projection.source == manifest.source(manifest.projection)
        fetched.path.write_bytes(b"altered" + DATA[8:])
        assert verified(fetched.path, client.settings) is False
        assert (await client.fetch(source)).path.read_bytes() == DATA[1:]
        for found in take_inventory(client.settings).models:
            remove_model(found)
        (folder / ".paddler-trio" / "m-00001-of-00002.gguf.quarantined").unlink()


async def test_a_pushed_model_that_is_nowhere_is_an_issue_with_what_to_do(
    hub: HubServer, tmp_path: Path
) -> None:
    async with pushing(tmp_path, hub) as client:
        url = f"store://sha256/{SHA256}/m.gguf"
        cases: list[tuple[str, str | None, type[DownloadError], str]] = [
            (url, None, PushedModelMissingError, "start it with --model-store"),
            (url, "", PushedModelMissingError, "does not have it: push the model again"),
            ("store://m.gguf", "", SourceMalformedError, "as a push prints it"),
        ]
        for source, store, kind, words in cases:
            with pytest.raises(kind, match=words) as caught:
                await client.fetch(source, store)
            assert caught.value.is_permanent == (kind is SourceMalformedError)
        manifest = await client.push(m=DATA)
        with pytest.raises(SourceMalformedError, match=r"no file 'x\.gguf', only m\.gguf"):
            await client.fetch(f"store://sha256/{manifest.sha256}/x.gguf")
        await client.world.store.remove(f"pushed/blobs/{SHA256}")
        with pytest.raises(PushedModelMissingError, match=r"has no m\.gguf any more"):
            await client.fetch(manifest.source(manifest.files[0]))
