"""Downloads from a hub on this machine: what arrives, what is asked for, and what goes wrong."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import mmap
import os
import random
import shutil
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from hub_server import HubServer, Misbehaviour, Repository, Seen, hub_server, sha256
from paddler_trio.models.cache.cache_verification import verified
from paddler_trio.models.cache.content_hash import ContentHash
from paddler_trio.models.cache.url_cache import UrlFile, UrlRecord
from paddler_trio.models.download import download_progress
from paddler_trio.models.download.download_progress import DownloadProgress
from paddler_trio.models.download.model_download import FetchedModel, ModelDownload
from paddler_trio.models.download.partial_file import HEADER_BYTES, PartialFile
from paddler_trio.models.download.transfer import TransferLimits
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.client.download_errors import (
    AccessDeniedError,
    CacheFullError,
    CacheNotWritableError,
    ContentMismatchError,
    DownloadError,
    LockHeldError,
    NotAModelError,
    RemoteFileChangedError,
    RequestRejectedError,
    ServerFailedError,
    ServerUnreachableError,
    SourceMalformedError,
    SourceNotFoundError,
    TransferInterruptedError,
)
from paddler_trio.net.client.http_client import Timeouts
from paddler_trio.wire.paddler.agent_issue import (
    HuggingFaceCannotAcquireLock,
    HuggingFaceModelDoesNotExist,
    HuggingFacePermissions,
)
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, UrlModel

MIB = 1 << 20
TOKEN = "hf_" + "a" * 34
DATA = b"GGUF" + random.Random(1).randbytes(5 * MIB + 119)
MODEL = HuggingFaceModel(filename="m-Q4_K_M.gguf", repo_id="org/repo", revision="main")
SMALL_PARTS = TransferLimits(workers=3, part_blocks=1, failures=3, first_pause_s=0.001)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    files = {"m-Q4_K_M.gguf": DATA, "README.md": b"read me", "empty.gguf": b""}
    with hub_server({"org/repo": Repository(files)}) as hub:
        yield hub


@attrs.define
class World:
    """A cache, and downloads into it."""

    hub: HubServer
    root: Path
    progress: list[DownloadProgress | None] = attrs.field(factory=list)
    _published: trio.Event = attrs.field(factory=trio.Event, init=False)

    def settings(self, **more: object) -> HubSettings:
        return HubSettings(
            **{
                "endpoint": self.hub.hub_url,
                "cache": self.root / "hub",
                "url_cache": self.root / "urls",
                "timeouts": Timeouts(connect_s=5, silence_s=5, lock_s=5, lock_poll_s=0.01),
                **more,
            }
        )

    def publish(self, progress: DownloadProgress | None) -> None:
        self.progress.append(progress)
        self._published.set()
        self._published = trio.Event()

    async def shows(self, is_it: Callable[[DownloadProgress], bool]) -> None:
        """Wait until the last progress is what ``is_it`` wants."""
        with trio.fail_after(30):
            while not self.progress or self.progress[-1] is None or not is_it(self.progress[-1]):
                await self._published.wait()

    def download(self, **more: object) -> ModelDownload:
        return ModelDownload(self.settings(**more), self.publish, SMALL_PARTS)

    async def fetch(
        self, model: HuggingFaceModel | UrlModel = MODEL, **more: object
    ) -> FetchedModel:
        return await self.download(**more).fetch(model)

    def url(self, name: str) -> UrlModel:
        return UrlModel(f"{self.hub.storage_url}/storage/{name}")

    @property
    def leftovers(self) -> list[str]:
        return sorted(
            path.name
            for path in self.root.rglob("*")
            if path.suffix in {".partial", ".journal", ".quarantined", ".fresh"}
        )


@pytest.fixture
def world(hub: HubServer, tmp_path: Path) -> World:
    return World(hub, tmp_path)


@pytest.fixture
def every_step_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each takes less than the quarter of a second between two reports."""
    monkeypatch.setattr(download_progress, "MIN_INTERVAL_S", 0.0)


# --- what is right --------------------------------------------------------------------------------


async def test_a_hub_file_arrives_in_parts_and_lies_where_others_look_for_it(
    world: World, hub: HubServer
) -> None:
    fetched = await world.fetch()
    commit = hub.repositories["org/repo"].commit
    repository = world.root / "hub" / "models--org--repo"
    assert fetched.path == repository / "snapshots" / commit / "m-Q4_K_M.gguf"
    assert fetched.commit == commit
    assert fetched.path.read_bytes() == DATA
    assert fetched.path.readlink() == Path(f"../../blobs/{sha256(DATA)}")
    assert (repository / "refs" / "main").read_text() == commit
    ranges = sorted(seen.range for seen in hub.seen_by_storage() if seen.range)
    assert len(ranges) == 6, "five parts of 1 MiB and a rest"
    assert hub.served_bytes == len(DATA)
    assert world.leftovers == []


async def test_a_second_fetch_transfers_nothing(world: World, hub: HubServer) -> None:
    first = await world.fetch()
    hub.seen.clear()
    assert await world.fetch() == first
    assert [seen.method for seen in hub.seen] == ["HEAD"]


async def test_a_commit_that_is_cached_needs_no_server(world: World, hub: HubServer) -> None:
    fetched = await world.fetch()
    assert fetched.commit is not None
    hub.seen.clear()
    pinned = attrs.evolve(MODEL, revision=fetched.commit)
    assert (await world.fetch(pinned)).path == fetched.path
    assert hub.seen == []


async def test_small_files_empty_ones_and_relative_redirects(world: World) -> None:
    for name, data in {"README.md": b"read me", "empty.gguf": b""}.items():
        fetched = await world.fetch(attrs.evolve(MODEL, filename=name))
        assert fetched.path.read_bytes() == data


@pytest.mark.usefixtures("every_step_is_shown")
async def test_all_parts_of_a_split_model_come_from_one_commit(
    world: World, hub: HubServer
) -> None:
    parts = {f"q/m-0000{i}-of-00003.gguf": bytes([i]) * 1000 for i in (1, 2, 3)}
    hub.repositories["org/split"] = Repository(parts)
    model = HuggingFaceModel("q/m-00001-of-00003.gguf", "org/split", "main")
    fetched = await world.fetch(model)
    assert [path.name for path in fetched.files] == [Path(name).name for name in parts]
    assert {path.parent for path in fetched.files} == {fetched.path.parent}
    assert [path.read_bytes() for path in fetched.files] == list(parts.values())
    counts = {(p.file_index, p.file_count) for p in world.progress if p is not None}
    assert counts == {(1, 3), (2, 3), (3, 3)}


async def test_a_url_lies_under_its_host_with_its_name_and_is_not_asked_for_again(
    world: World, hub: HubServer
) -> None:
    hub.stored["dir/a b.gguf"] = DATA
    model = UrlModel(f"{hub.storage_url}/storage/dir/a%20b.gguf")
    fetched = await world.fetch(model)
    assert fetched.path.name == "a b.gguf"
    assert fetched.path.parent.parent == world.root / "urls" / "127.0.0.1"
    assert fetched.path.read_bytes() == DATA
    hub.seen.clear()
    assert await world.fetch(model, offline=True) == fetched
    assert hub.seen == []


@pytest.mark.parametrize("is_hub", [True, False])
async def test_a_file_gets_its_name_once_its_bytes_are_on_the_disk(
    world: World, hub: HubServer, monkeypatch: pytest.MonkeyPatch, is_hub: bool
) -> None:
    """The order of calls: a crash of the machine between any two leaves no name without content."""
    hub.stored["m.gguf"] = DATA
    calls: list[tuple[str, int]] = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        sync(descriptor)
        calls.append(("fsync", os.fstat(descriptor).st_ino))

    def replaced(self: Path, target: Path) -> Path:
        calls.append(("rename", self.stat().st_ino))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    fetched = await world.fetch(MODEL if is_hub else world.url("m.gguf"))
    file = fetched.path.resolve()
    renamed = calls.index(("rename", file.stat().st_ino))
    assert ("fsync", file.stat().st_ino) in calls[:renamed]
    assert ("fsync", file.parent.stat().st_ino) in calls[renamed:]


async def test_the_token_goes_to_the_hub_and_not_to_its_storage(
    world: World, hub: HubServer, tmp_path: Path
) -> None:
    hub.repositories["org/repo"].token = TOKEN
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    await world.fetch(token_file=tmp_path / "token")
    assert {seen.headers.get("authorization") for seen in hub.seen_by_hub()} == {f"Bearer {TOKEN}"}
    assert all("authorization" not in seen.headers for seen in hub.seen_by_storage())


@pytest.mark.usefixtures("every_step_is_shown")
async def test_progress_counts_every_byte_and_ends_with_none(world: World) -> None:
    await world.fetch()
    assert world.progress[-1] is None
    shown = [progress for progress in world.progress if progress is not None]
    assert {progress.filename for progress in shown} == {"m-Q4_K_M.gguf"}
    assert shown[-1].current_bytes == shown[-1].total_bytes == len(DATA)
    assert shown[-1].phase == "saving"
    assert [p.current_bytes for p in shown] == sorted(p.current_bytes for p in shown)


# --- connections that break -----------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 4093, 65536, MIB - 1, MIB + 1])
async def test_a_connection_that_drops_at_every_so_many_bytes_transfers_each_byte_once(
    world: World, hub: HubServer, every: int
) -> None:
    data = DATA[: max(min(every * 40, len(DATA)), 40)]
    hub.repositories["org/repo"].files["d.gguf"] = data
    hub.misbehave = lambda seen: Misbehaviour(drops_after=every)
    fetched = await world.fetch(attrs.evolve(MODEL, filename="d.gguf"))
    assert fetched.path.read_bytes() == data
    assert hub.served_bytes == len(data)


async def test_a_server_that_never_gets_further_is_given_up(world: World, hub: HubServer) -> None:
    hub.misbehave = lambda seen: Misbehaviour(drops_after=0)
    with pytest.raises(TransferInterruptedError, match="broke off"):
        await world.fetch()
    assert len(hub.seen_by_storage()) <= 3 * (SMALL_PARTS.failures + 2)


async def test_silence_is_an_interruption_with_its_length(world: World, hub: HubServer) -> None:
    hub.misbehave = lambda seen: Misbehaviour(falls_silent_after=0)
    timeouts = Timeouts(silence_s=0.5)  # of the head as well, and a busy machine takes a while
    with pytest.raises(TransferInterruptedError, match=r"127.0.0.1 sent nothing for 0.5 s"):
        await world.fetch(timeouts=timeouts)


async def test_what_an_attempt_leaves_is_not_fetched_again(world: World, hub: HubServer) -> None:
    def after_three(seen: Seen) -> Misbehaviour | None:
        is_late = seen.range is not None and seen.range[0] >= 3 * MIB
        return Misbehaviour(status=503) if is_late else None

    hub.misbehave = after_three
    with pytest.raises(ServerFailedError):
        await world.fetch()
    assert world.leftovers != []
    hub.misbehave = lambda seen: None
    fetched = await world.fetch()
    assert fetched.path.read_bytes() == DATA
    # at most what was on its way is fetched twice: one part for each of the three workers
    assert hub.served_bytes <= len(DATA) + 3 * MIB
    assert world.leftovers == []


async def test_resuming_asks_with_if_range(world: World, hub: HubServer) -> None:
    await world.fetch()
    etag = f'"{sha256(DATA)[:32]}"'
    later = [seen for seen in hub.seen_by_storage() if seen.range and seen.range[0] > 0]
    assert {seen.headers.get("if-range") for seen in later} == {etag}


@pytest.mark.parametrize("date", ["Fri, 31 Dec 1999 23:59:59 GMT", "Fri, 31 Dec 2100 23:59:59 GMT"])
async def test_a_date_is_sent_back_as_it_came_and_compared_with_no_clock(
    world: World, hub: HubServer, date: str
) -> None:
    hub.stored["dated.gguf"] = DATA

    def drops_at_first(seen: Seen) -> Misbehaviour:
        drops_after = MIB // 2 if len(hub.seen_by_storage()) < 3 else None
        return Misbehaviour(last_modified=date, drops_after=drops_after)

    hub.misbehave = drops_at_first
    assert (await world.fetch(world.url("dated.gguf"))).path.read_bytes() == DATA
    first, *others = hub.seen_by_storage()
    assert "if-range" not in first.headers
    assert {seen.headers["if-range"] for seen in others} == {date}
    assert len(others) > 3


async def test_cancelling_is_quick_and_keeps_what_is_there(world: World, hub: HubServer) -> None:
    def first_two(seen: Seen) -> Misbehaviour | None:
        is_late = seen.range is not None and seen.range[0] >= 2 * MIB
        return Misbehaviour(falls_silent_after=10) if is_late else None

    hub.misbehave = first_two
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(world.fetch, timeouts=Timeouts(silence_s=100)))
        await world.shows(lambda progress: progress.current_bytes > 2 * MIB)
        began_s = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began_s < 50, "it waited for the silence to end"
    assert world.progress[-1] is None
    hub.misbehave = lambda seen: None
    hub.seen.clear()
    await world.fetch()
    ranges = [seen.range for seen in hub.seen_by_storage() if seen.range]
    assert min(start for start, _ in ranges) >= 2 * MIB


# --- servers that do not keep the rules -----------------------------------------------------------


async def test_a_server_without_ranges_sends_it_in_one_go(world: World, hub: HubServer) -> None:
    hub.misbehave = lambda seen: Misbehaviour(ignores_range=True)
    assert (await world.fetch()).path.read_bytes() == DATA
    assert len(hub.seen_by_storage()) == 1


async def test_a_server_that_hides_the_length(world: World, hub: HubServer) -> None:
    hub.stored["x.gguf"] = DATA
    hub.misbehave = lambda seen: Misbehaviour(ignores_range=True, hides_length=True)
    fetched = await world.fetch(world.url("x.gguf"))
    assert fetched.path.read_bytes() == DATA
    assert {p.total_bytes for p in world.progress if p is not None} == {None}


async def test_what_came_without_a_length_does_not_stay_when_it_breaks_off(
    world: World, hub: HubServer
) -> None:
    """Nobody could go on with it, and it may have filled the disk."""
    hub.stored["x.gguf"] = DATA
    hub.misbehave = lambda seen: Misbehaviour(
        ignores_range=True, hides_length=True, drops_after=3 * MIB
    )
    with pytest.raises(TransferInterruptedError):
        await world.fetch(world.url("x.gguf"))
    (partial,) = (world.root / "urls").rglob("*.partial")
    assert partial.stat().st_blocks == 0
    hub.misbehave = lambda seen: Misbehaviour(
        ignores_range=True, hides_length=True, falls_silent_after=3 * MIB
    )
    with trio.move_on_after(1) as patience:
        await world.fetch(world.url("x.gguf"))
    assert patience.cancelled_caught
    assert max(p.current_bytes for p in world.progress if p is not None) >= 2 * MIB
    assert partial.stat().st_blocks == 0


@pytest.mark.parametrize(
    "content_range",
    [
        "bytes 1-1048576/5243003",
        "bytes 0-9999999/5243003",
        "nonsense",
        "bytes 0-1048575/*",
        "",
        "5",
    ],
)
async def test_a_wrong_content_range_is_refused(
    world: World, hub: HubServer, content_range: str
) -> None:
    hub.misbehave = lambda seen: Misbehaviour(content_range=content_range or " ")
    with pytest.raises(ServerFailedError, match="sent"):
        await world.fetch()


async def test_a_file_that_changes_between_parts_is_never_mixed(
    world: World, hub: HubServer
) -> None:
    other = b"GGUF" + random.Random(2).randbytes(len(DATA) - 4)
    hub.stored["x.gguf"] = DATA

    def change(seen: Seen) -> None:
        if seen.range is not None and seen.range[0] >= 2 * MIB:
            hub.stored["x.gguf"] = other

    hub.misbehave = change
    fetched = await world.fetch(world.url("x.gguf"))
    assert fetched.path.read_bytes() == other


async def test_a_file_that_changes_all_the_time_ends_in_an_error(
    world: World, hub: HubServer
) -> None:
    hub.stored["x.gguf"] = DATA
    hub.misbehave = lambda seen: Misbehaviour(etag=f'"{len(hub.seen)}"')
    with pytest.raises(RemoteFileChangedError, match="changed on the server"):
        await world.fetch(world.url("x.gguf"))


async def test_other_bytes_under_the_same_etag_are_quarantined_and_fetched_anew_once(
    world: World, hub: HubServer
) -> None:
    wrong = bytes([DATA[0] ^ 1]) + DATA[1:]
    etag = f'"{sha256(DATA)[:32]}"'
    answers = iter(range(100))
    hub.misbehave = lambda seen: Misbehaviour(body=wrong, etag=etag) if next(answers) < 6 else None
    assert (await world.fetch()).path.read_bytes() == DATA
    assert world.leftovers == [f"{sha256(DATA)}.quarantined"]


async def test_bytes_that_stay_wrong_are_never_published(world: World, hub: HubServer) -> None:
    wrong = bytes([DATA[0] ^ 1]) + DATA[1:]
    hub.misbehave = lambda seen: Misbehaviour(body=wrong)
    with pytest.raises(ContentMismatchError, match="twice"):
        await world.fetch()
    assert list((world.root / "hub").glob("models--*/snapshots/*/*")) == []
    assert list((world.root / "hub").glob("models--*/blobs/*")) == []


async def test_a_url_may_carry_its_hash(world: World, hub: HubServer) -> None:
    hub.stored["x.gguf"] = DATA
    url = f"{hub.storage_url}/storage/x.gguf#sha256="
    with pytest.raises(ContentMismatchError):
        await world.fetch(UrlModel(url + "0" * 64))
    assert (await world.fetch(UrlModel(url + sha256(DATA)))).path.read_bytes() == DATA


@pytest.mark.parametrize("hides_length", [False, True])
async def test_a_page_is_no_model_and_is_not_kept(
    world: World, hub: HubServer, hides_length: bool
) -> None:
    page = b"<!DOCTYPE html><title>Sign in</title>" * 1000
    hub.stored["m.gguf"] = DATA
    hub.misbehave = lambda seen: Misbehaviour(
        body=page, ignores_range=True, hides_length=hides_length
    )
    model = world.url("m.gguf")
    with pytest.raises(NotAModelError, match="it is no GGUF file: it begins with b'<!DO'"):
        await world.fetch(model)
    hub.misbehave = lambda seen: None
    assert [path for path in world.root.rglob("*") if path.is_file() and path.stat().st_size] == []
    assert (await world.fetch(model)).path.read_bytes() == DATA


async def test_a_page_that_an_earlier_version_kept_is_fetched_anew(
    world: World, hub: HubServer
) -> None:
    page = b"<!DOCTYPE html>"
    hub.stored["m.gguf"] = DATA
    model = world.url("m.gguf")
    file = UrlFile.of(world.settings().url_cache, model.url)
    file.ours.mkdir(parents=True)
    (world.root / "page").write_bytes(page)
    digest = ContentHash("sha256", sha256(page))
    file.publish(world.root / "page", UrlRecord(len(page), digest, "", model.url))
    assert (await world.fetch(model)).path == file.path
    assert file.path.read_bytes() == DATA


async def test_what_an_earlier_version_left_of_a_page_is_not_continued(
    world: World, hub: HubServer
) -> None:
    page = b"<!DOCTYPE html>" * 200_000
    model = world.url("m.gguf")
    file = UrlFile.of(world.settings().url_cache, model.url)
    hub.stored["m.gguf"] = page
    etag = f'"{sha256(page)[:32]}"'
    partial = PartialFile.open(file.ours, file.name, knows_hash=False)
    partial.begin(len(page), etag)
    partial.write(0, [page[: 1 << 20]], block=0)
    partial.close()
    with pytest.raises(NotAModelError, match="it is no GGUF file"):
        await world.fetch(model)
    assert world.leftovers == []
    assert not file.path.exists()


async def test_redirects_in_a_circle_end(world: World, hub: HubServer) -> None:
    hub.misbehave = lambda seen: Misbehaviour(status=302, headers={"Location": seen.path})
    with pytest.raises(ServerFailedError, match="circle"):
        await world.fetch()


async def test_redirects_without_an_end_end(world: World, hub: HubServer) -> None:
    hub.misbehave = lambda seen: Misbehaviour(
        status=302, headers={"Location": f"/storage/{len(hub.seen)}"}
    )
    with pytest.raises(ServerFailedError, match="more than 10 times"):
        await world.fetch()


async def test_a_redirect_to_a_file_is_not_followed(world: World, hub: HubServer) -> None:
    hub.misbehave = lambda seen: Misbehaviour(
        status=302, headers={"Location": "file:///etc/passwd"}
    )
    with pytest.raises(ServerFailedError, match="from http to 'file'"):
        await world.fetch()


async def test_a_signed_address_that_expires_is_asked_for_again(
    world: World, hub: HubServer
) -> None:
    answers = iter(range(100))
    hub.misbehave = lambda seen: Misbehaviour(status=403) if next(answers) == 2 else None
    assert (await world.fetch()).path.read_bytes() == DATA


async def test_a_size_beyond_reason_is_refused_before_anything_is_written(
    world: World, hub: HubServer
) -> None:
    hub.stored["x.gguf"] = DATA
    hub.misbehave = lambda seen: Misbehaviour(content_range=f"bytes 0-1048575/{10**18}")
    with pytest.raises(ServerFailedError) as caught:
        await world.fetch(world.url("x.gguf"))
    assert str(10**18) in caught.value.cause
    hub.misbehave = lambda seen: Misbehaviour(
        content_length=str(10**19), ignores_range=True, falls_silent_after=10
    )
    with pytest.raises(ServerFailedError, match="Content-Length"), trio.fail_after(3):
        await world.fetch(world.url("x.gguf"))  # and nobody waits for what would come
    hub.misbehave = lambda seen: Misbehaviour(content_range=f"bytes 0-1048575/{2**49}")
    with pytest.raises(CacheFullError, match=f"{2**49} bytes are needed"):
        await world.fetch(world.url("x.gguf"))


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        (attrs.evolve(MODEL, repo_id="org/none"), "no such repository"),
        (attrs.evolve(MODEL, revision="v9"), "no such revision"),
        (attrs.evolve(MODEL, filename="none.gguf"), "no such file"),
    ],
)
async def test_what_the_hub_does_not_have_is_told_apart(
    world: World, model: HuggingFaceModel, cause: str
) -> None:
    with pytest.raises(SourceNotFoundError, match=cause) as caught:
        await world.fetch(model)
    assert caught.value.is_permanent
    path = f"{model.repo_id}/{model.revision}/{model.filename}"
    assert caught.value.issue == HuggingFaceModelDoesNotExist(path)


async def test_a_gated_repository_says_what_to_do(world: World, hub: HubServer) -> None:
    repository = hub.repositories["org/repo"]
    repository.token, repository.is_gated = TOKEN, True
    with pytest.raises(AccessDeniedError, match=r"gated.*HF_TOKEN") as caught:
        await world.fetch()
    assert caught.value.issue == HuggingFacePermissions("org/repo/main/m-Q4_K_M.gguf")
    with pytest.raises(AccessDeniedError, match="the token's account has not"):
        await world.fetch(env_token="hf_wrong")
    await world.fetch(env_token=TOKEN)


async def test_errors_never_contain_the_token(world: World, hub: HubServer) -> None:
    hub.repositories["org/repo"].token = "another"
    with pytest.raises(SourceNotFoundError) as caught:
        await world.fetch(env_token=TOKEN)
    assert TOKEN not in f"{caught.value!r} {caught.value.__cause__!r} {world.settings()!r}"


@pytest.mark.parametrize(
    ("status", "error", "is_permanent"),
    [
        (400, RequestRejectedError, True),
        (401, AccessDeniedError, True),
        (403, AccessDeniedError, True),
        (404, SourceNotFoundError, True),
        (408, ServerFailedError, False),
        (410, SourceNotFoundError, True),
        (418, RequestRejectedError, True),
        (429, ServerFailedError, False),
        (500, ServerFailedError, False),
        (503, ServerFailedError, False),
    ],
)
async def test_each_status_of_a_plain_server_has_its_error(
    world: World, hub: HubServer, status: int, error: type[DownloadError], is_permanent: bool
) -> None:
    hub.misbehave = lambda seen: Misbehaviour(status=status, headers={"Retry-After": "7"})
    with pytest.raises(error) as caught:
        await world.fetch(world.url("x.gguf"))
    assert caught.value.is_permanent == is_permanent
    if isinstance(caught.value, ServerFailedError):
        assert caught.value.retry_after_s == 7


async def test_a_closed_port_and_an_unknown_host(world: World) -> None:
    with pytest.raises(ServerUnreachableError, match=r"cannot reach 127\.0\.0\.1"):
        await world.fetch(UrlModel("http://127.0.0.1:9/x.gguf"))
    with pytest.raises(ServerUnreachableError, match=r"cannot reach no-such-host\.invalid"):
        await world.fetch(UrlModel("http://no-such-host.invalid/x.gguf"))


@pytest.mark.parametrize("url", ["ftp://host/x", "http:///x", "http://[::1/x", "x", "http://a:b/"])
async def test_what_is_no_url_is_malformed(world: World, url: str) -> None:
    with pytest.raises(SourceMalformedError):
        await world.fetch(UrlModel(url))


@pytest.mark.parametrize(
    "model",
    [
        attrs.evolve(MODEL, filename="../../x.gguf"),
        attrs.evolve(MODEL, filename="/etc/passwd"),
        attrs.evolve(MODEL, filename="a/./x.gguf"),
        attrs.evolve(MODEL, filename="a\0.gguf"),
        attrs.evolve(MODEL, filename="x" * 300),
        attrs.evolve(MODEL, revision="../../../refs"),
        attrs.evolve(MODEL, repo_id="../.."),
        attrs.evolve(MODEL, repo_id="a/b/c"),
        attrs.evolve(MODEL, repo_id="a--b/c"),
    ],
)
async def test_names_that_leave_their_folder_are_refused_before_anyone_is_asked(
    world: World, hub: HubServer, model: HuggingFaceModel
) -> None:
    with pytest.raises(SourceMalformedError, match="is no name of a"):
        await world.fetch(model)
    assert hub.seen == []


@pytest.mark.parametrize("etag", ["../../x", "..", "", "a/b", "x" * 300])
async def test_an_etag_that_leaves_its_folder_is_refused(
    world: World, hub: HubServer, etag: str
) -> None:
    headers = {"X-Repo-Commit": "0" * 40, "X-Linked-Etag": f'"{etag}"', "Content-Length": "1"}
    hub.hub_misbehave = lambda seen: Misbehaviour(status=200, headers=headers)
    with pytest.raises(ServerFailedError, match="ETag"):
        await world.fetch()


async def test_a_server_that_is_no_hub_is_named(world: World, hub: HubServer) -> None:
    hub.hub_misbehave = lambda seen: Misbehaviour(status=200)
    with pytest.raises(ServerFailedError, match="it is no hub"):
        await world.fetch()


# --- the cache ------------------------------------------------------------------------------------


async def test_a_hub_that_fails_or_refuses_leaves_what_is_cached_in_use(
    world: World, hub: HubServer
) -> None:
    fetched = await world.fetch()
    for status in (500, 403):
        hub.hub_misbehave = lambda seen, status=status: Misbehaviour(status=status)
        assert await world.fetch() == fetched
    assert await world.fetch(endpoint="http://127.0.0.1:9") == fetched
    assert await world.fetch(offline=True) == fetched


async def test_offline_without_the_file_says_so(world: World, hub: HubServer) -> None:
    with pytest.raises(ServerUnreachableError, match="HF_HUB_OFFLINE"):
        await world.fetch(offline=True)
    with pytest.raises(ServerUnreachableError, match="HF_HUB_OFFLINE"):
        await world.fetch(world.url("x.gguf"), offline=True)
    assert hub.seen == []


async def test_a_blob_of_the_wrong_size_or_kind_is_replaced(world: World) -> None:
    fetched = await world.fetch()
    blob = fetched.path.resolve()
    for spoil in (lambda: blob.write_bytes(DATA[:100]), lambda: blob.mkdir()):
        blob.unlink()
        spoil()
        assert (await world.fetch()).path.read_bytes() == DATA
        assert blob.is_file()


async def test_a_file_that_would_not_load_is_hashed_again(world: World) -> None:
    fetched = await world.fetch()
    assert verified(fetched.path, world.settings()) is True
    with fetched.path.open("r+b") as file:
        file.seek(MIB)
        file.write(b"altered")
    assert verified(fetched.path, world.settings()) is False
    assert not fetched.path.exists()
    assert (await world.fetch()).path.read_bytes() == DATA


async def test_an_altered_url_file_is_found_too(world: World, hub: HubServer) -> None:
    hub.stored["x.gguf"] = DATA
    fetched = await world.fetch(world.url("x.gguf"))
    assert verified(fetched.path, world.settings()) is True
    with fetched.path.open("r+b") as file:
        file.write(b"altered")
    assert verified(fetched.path, world.settings()) is False
    assert verified(Path("/etc/passwd"), world.settings()) is None
    assert (await world.fetch(world.url("x.gguf"))).path.read_bytes() == DATA


async def test_two_downloads_of_one_file_are_one(world: World, hub: HubServer) -> None:
    gate = threading.Event()
    hub.misbehave = lambda seen: Misbehaviour(
        waits_for=gate if seen.range is not None and seen.range[0] >= 3 * MIB else None
    )
    other = World(hub, world.root)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.fetch)
            await world.shows(lambda progress: progress.current_bytes >= MIB)
            nursery.start_soon(other.fetch)
            await other.shows(lambda p: p.phase.startswith("waiting") and p.current_bytes >= MIB)
            gate.set()
    finally:
        gate.set()
    assert hub.served_bytes == len(DATA)


async def test_a_holder_without_progress_is_an_issue_with_the_locks_path(
    world: World, hub: HubServer
) -> None:
    lock = world.root / "hub" / ".locks" / "models--org--repo" / f"{sha256(DATA)}.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LockHeldError, match=r"no progress for 0\.05 s") as caught:
            await world.fetch(timeouts=Timeouts(lock_s=0.05, lock_poll_s=0.01))
    issue = caught.value.issue
    assert isinstance(issue, HuggingFaceCannotAcquireLock)
    assert issue.lock_path == str(lock)


async def test_other_downloads_count_when_space_is_checked(
    world: World, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = world.root / "hub" / "models--other--repo" / ".paddler-trio"
    ours.mkdir(parents=True)
    fields = {"size_bytes": 10 * MIB, "block_bytes": MIB, "etag": "", "boot_id": ""}
    header = json.dumps(fields).encode().ljust(HEADER_BYTES)
    journal = ours / "x.journal"
    journal.write_bytes(header + bytes([1, 1, 1, 0, 0, 0, 0, 0, 0, 0]))
    real = os.statvfs
    free = len(DATA) + 7 * MIB
    monkeypatch.setattr(os, "statvfs", lambda path: Space(free - 1) if path else real(path))
    with journal.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(CacheFullError, match=f"{7 * MIB} of them for other downloads"):
            await world.fetch()
    await world.fetch()  # nobody downloads it any more


@pytest.mark.thorough
async def test_a_file_of_50_gb_takes_no_memory_for_its_size(
    world: World, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 50 << 30
    with (world.root / "huge").open("w+b") as file:  # all but its first page takes no room
        file.write(DATA[:4])
        file.truncate(size)
        huge = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
    hub.stored["huge.gguf"] = huge  # type: ignore[assignment]
    hub.misbehave = lambda seen: Misbehaviour(etag='"huge"')
    monkeypatch.setattr(os, "statvfs", lambda path: Space(10**12))
    tracemalloc.start()
    try:
        for here in (64 * MIB, 128 * MIB):  # the second time it goes on with the journal
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.fetch, world.url("huge.gguf"))
                await world.shows(partial(_has, here))
                nursery.cancel_scope.cancel()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 32 * MIB
    (path,) = (path for path in (world.root / "urls").rglob("*.partial"))
    assert path.stat().st_blocks * 512 < 1024 * MIB


def _has(current_bytes: int, progress: DownloadProgress) -> bool:
    return progress.current_bytes >= current_bytes


async def test_a_clock_that_jumps_changes_nothing(
    world: World, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = itertools.cycle([0.0, 4e9, 1.7e9])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: int(next(jumps) * 1e9))

    def breaks_once(seen: Seen) -> Misbehaviour | None:
        return Misbehaviour(drops_after=MIB // 2) if len(hub.seen_by_storage()) < 3 else None

    hub.misbehave = breaks_once
    fetched = await world.fetch()
    assert fetched.path.read_bytes() == DATA
    hub.seen.clear()
    await world.fetch()
    assert hub.seen_by_storage() == []


@attrs.frozen
class Space:
    """What ``os.statvfs`` returns."""

    f_bavail: int
    f_frsize: int = 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB; only root can make one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


async def test_a_disk_that_is_full_in_the_middle_keeps_what_is_there(
    hub: HubServer, small_disk: Path
) -> None:
    world = World(hub, small_disk)
    gate, arrived = threading.Event(), threading.Semaphore(0)

    def late_ones_wait(seen: Seen) -> Misbehaviour | None:
        if seen.range is None or seen.range[0] < 3 * MIB:
            return None
        arrived.release()
        return Misbehaviour(waits_for=gate)

    hub.misbehave = late_ones_wait
    filler = small_disk / "filler"
    try:
        async with trio.open_nursery() as nursery:

            async def fetch() -> None:
                with pytest.raises(CacheFullError, match="No space left"):
                    await world.fetch()

            nursery.start_soon(fetch)
            for _ in range(3):  # each worker has written its first part, and asks for the next
                assert await trio.to_thread.run_sync(partial(arrived.acquire, timeout=30))
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            gate.set()
    finally:
        gate.set()
    filler.unlink()
    hub.misbehave = lambda seen: None
    hub.seen.clear()
    assert (await world.fetch()).path.read_bytes() == DATA
    ranges = sorted(seen.range for seen in hub.seen_by_storage() if seen.range)
    assert [start // MIB for start, _ in ranges] == [3, 4, 5]
    await trio.to_thread.run_sync(shutil.rmtree, small_disk / "hub")


async def test_a_disk_that_refuses_a_write_is_full(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: object, start: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CacheFullError, match="No space left"):
        await world.fetch()


async def test_a_cache_that_cannot_be_written_to(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refused(path: object, flags: int, *rest: object, **more: object) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(world.root)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *rest, **more)  # type: ignore[arg-type]

    fetched = await world.fetch()
    monkeypatch.setattr(os, "open", refused)
    assert await world.fetch() == fetched, "a warm cache needs no writing"
    with pytest.raises(CacheNotWritableError, match="Read-only file system"):
        await world.fetch(attrs.evolve(MODEL, filename="README.md"))
