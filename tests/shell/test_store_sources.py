"""What a store fetches for agents: once, streamed on while it arrives, with the source's errors."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from store_world import Answered, answered, hub_path, store_world, url_path

from hub_server import HubServer, Misbehaviour, Repository, Seen, hub_server, sha256
from paddler_trio.models.cache.content_hash import ContentHash
from paddler_trio.models.cache.url_cache import UrlFile, UrlRecord
from paddler_trio.net.client.download_errors import Subject, stores_error
from paddler_trio.processes.model_store.source_routes import MAX_LISTINGS

MIB = 1 << 20
DATA = b"GGUF" + random.Random(1).randbytes(6 * MIB + 123)
NAME = "m-Q4_K_M.gguf"
SUBJECT = Subject("it", is_hub=True)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server({"org/repo": Repository({NAME: DATA, "README.md": b"read me"})}) as hub:
        yield hub


async def test_the_head_is_the_hubs_and_the_body_its_file(hub: HubServer, tmp_path: Path) -> None:
    async with store_world(tmp_path, hub) as world:
        head = await world.ask(hub_path(NAME), "HEAD")
        assert head.status == 200
        assert head.headers["x-repo-commit"] == hub.repositories["org/repo"].commit
        assert head.headers["x-linked-etag"] == f'"{sha256(DATA)}"'
        assert head.headers["x-linked-size"] == str(len(DATA))
        assert hub.seen_by_storage() == [], "a HEAD fetches nothing"
        answer = await world.ask(hub_path(NAME))
        assert (answer.status, answer.body) == (200, DATA)
        assert hub.served_bytes == len(DATA)


async def test_however_many_ask_each_byte_is_fetched_once(hub: HubServer, tmp_path: Path) -> None:
    answers: list[Answered] = []
    async with store_world(tmp_path, hub) as world:

        async def pull(first: int) -> None:
            answers.append(await world.ask(hub_path(NAME), range=f"bytes={first}-"))

        async with trio.open_nursery() as pullers:
            for number in range(8):
                pullers.start_soon(pull, number * MIB // 2)
        assert sorted(len(answer.body) for answer in answers) == sorted(
            len(DATA) - number * MIB // 2 for number in range(8)
        )
        assert all(DATA.endswith(answer.body) for answer in answers)
        assert hub.served_bytes == len(DATA)
        again = await world.ask(hub_path(NAME))
        assert again.body == DATA
        assert hub.served_bytes == len(DATA)
        heads = [seen for seen in hub.seen_by_hub() if seen.method == "HEAD"]
        assert len(heads) <= 2, "one for the branch, one for its commit"


async def test_what_has_arrived_is_sent_while_the_rest_is_missing(
    hub: HubServer, tmp_path: Path
) -> None:
    gate = threading.Event()

    def late(seen: Seen) -> Misbehaviour | None:
        return Misbehaviour(drops_after=3 * MIB) if not gate.is_set() else None

    hub.misbehave = late
    try:
        async with store_world(tmp_path, hub) as world:
            async with await world.open(hub_path(NAME)) as client:
                received = bytearray()
                while len(received) < 2 * MIB:
                    received += await client.receive_some()
                _, _, body = bytes(received).partition(b"\r\n\r\n")
                assert DATA.startswith(body)
                gate.set()
                async for data in client:
                    received += data
            assert answered(bytes(received)).body == DATA
    finally:
        gate.set()


async def test_the_last_bytes_are_fetched_first_when_somebody_waits_for_them(
    hub: HubServer, tmp_path: Path
) -> None:
    big = random.Random(2).randbytes(200 * MIB // 4)
    hub.repositories["org/repo"].files["big.gguf"] = big
    async with store_world(tmp_path, hub) as world:
        tail = await world.ask(hub_path("big.gguf"), range="bytes=-100")
        assert tail.body == big[-100:]


async def test_a_url_is_served_with_its_sources_validator(hub: HubServer, tmp_path: Path) -> None:
    hub.stored["dir/x.gguf"] = DATA
    url = f"{hub.storage_url}/storage/dir/x.gguf"
    async with store_world(tmp_path, hub) as world:
        first = await world.ask(url_path(url), range="bytes=0-99")
        assert first.body == DATA[:100]
        etag = first.headers["etag"]
        assert etag == f'"{sha256(DATA)[:32]}"'
        whole = await world.ask(url_path(url), range="bytes=5-", if_range=etag)
        assert (whole.status, whole.body) == (206, DATA[5:])
        assert hub.served_bytes == len(DATA)
        assert (tmp_path / "urls").is_dir()


@pytest.mark.parametrize("hides_length", [False, True])
@pytest.mark.parametrize("asked", [None, "bytes=4-"])
async def test_what_is_no_model_is_not_handed_out(
    hub: HubServer, tmp_path: Path, hides_length: bool, asked: str | None
) -> None:
    """A URL may lead to what only the balancer's machine reaches."""
    hub.stored["credentials"] = b"secret" * 500_000
    hub.misbehave = lambda seen: Misbehaviour(hides_length=hides_length)
    url = f"{hub.storage_url}/storage/credentials"
    async with store_world(tmp_path, hub) as world:
        answer = await world.ask(url_path(url), **({"range": asked} if asked else {}))
        assert (answer.status, b"secret" in answer.body) == (400, False)
        assert b"no GGUF file" in answer.body
        await world.settled()
        assert not [path for path in (tmp_path / "urls").rglob("credentials") if path.is_file()]


@pytest.mark.parametrize("hides_length", [False, True])
async def test_nothing_goes_from_the_store_for_what_is_no_model(
    hub: HubServer, tmp_path: Path, hides_length: bool
) -> None:
    hub.stored["image.iso"] = b"CD001" + bytes(6 * MIB)
    hub.misbehave = lambda seen: Misbehaviour(hides_length=hides_length)
    async with store_world(tmp_path, hub, budget_bytes=8 * MIB) as world:
        assert (await world.ask(hub_path(NAME))).body == DATA
        refused = await world.ask(url_path(f"{hub.storage_url}/storage/image.iso"))
        assert refused.status == 400
        await world.settled()
        num_fetches = len(hub.seen_by_storage())
        assert (await world.ask(hub_path(NAME))).body == DATA
        assert len(hub.seen_by_storage()) == num_fetches, "it is still here"


async def test_what_is_no_model_and_was_left_by_a_store_that_ended_is_not_handed_out(
    hub: HubServer, tmp_path: Path
) -> None:
    """A download that ends behind its renaming has not looked at what came."""
    secret = b"secret" * 100
    hub.stored["credentials"] = secret
    url = f"{hub.storage_url}/storage/credentials"
    left = tmp_path / "left"
    left.write_bytes(secret)
    async with store_world(tmp_path, hub) as world:
        file = UrlFile.of(world.store.layout.urls, url)
        file.ours.mkdir(parents=True)
        digest = ContentHash("sha256", sha256(secret))
        file.publish(left, UrlRecord(len(secret), digest, '"1"', url))
        answer = await world.ask(url_path(url))
        assert (answer.status, b"secret" in answer.body) == (400, False)
        assert b"no GGUF file" in answer.body
        await world.settled()
        assert not file.path.exists()


async def test_lists_of_repositories_are_small_and_few_at_once(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may make a repository of a hundred thousand files, and ask for it often."""
    gate = threading.Event()
    hub.hub_misbehave = lambda seen: Misbehaviour(status=500, waits_for=gate)
    path = "/hf/api/models/org/repo/revision/main"
    async with store_world(tmp_path, hub) as world:
        clients = [await world.open(path) for _ in range(3 * MAX_LISTINGS)]
        with trio.fail_after(50):
            while len(hub.seen) < MAX_LISTINGS:  # noqa: ASYNC110  # a server in a thread
                await trio.sleep(0.01)
        await trio.sleep(0.2)
        assert len(hub.seen) == MAX_LISTINGS
        for client in clients:
            await client.aclose()
        gate.set()
        hub.hub_misbehave = lambda seen: None
        assert (await world.ask(path)).status == 200, "those that left hold no place"
        monkeypatch.setattr(
            "paddler_trio.processes.model_store.source_routes.MAX_LISTING_BYTES", 50
        )
        refused = await world.ask(path)
        assert (refused.status, b"over the limit of 50 bytes" in refused.body) == (502, True)


async def test_revisions_with_slashes_branches_and_commits(hub: HubServer, tmp_path: Path) -> None:
    repository = hub.repositories["org/repo"]
    repository.refs["refs/pr/3"] = repository.commit
    async with store_world(tmp_path, hub) as world:
        for revision in ("refs/pr/3", repository.commit, "main"):
            answer = await world.ask(hub_path("README.md", revision=revision))
            assert answer.body == b"read me"
            assert answer.headers["x-repo-commit"] == repository.commit
        listing = await world.ask("/hf/api/models/org/repo/revision/refs%2Fpr%2F3")
        assert NAME in listing.body.decode()


@pytest.mark.parametrize(
    ("refusal", "status", "error"),
    [
        (Misbehaviour(status=401), 403, "AccessDeniedError"),
        (Misbehaviour(status=403, headers={"X-Error-Code": "GatedRepo"}), 403, "AccessDeniedError"),
        (
            Misbehaviour(status=404, headers={"X-Error-Code": "RevisionNotFound"}),
            404,
            "SourceNotFoundError",
        ),
        (Misbehaviour(status=400), 400, "RequestRejectedError"),
        (Misbehaviour(status=500), 502, "ServerFailedError"),
    ],
)
async def test_what_the_hub_refuses_is_refused_with_its_cause(
    hub: HubServer, tmp_path: Path, refusal: Misbehaviour, status: int, error: str
) -> None:
    hub.hub_misbehave = lambda seen: refusal
    async with store_world(tmp_path, hub) as world:
        for method in ("HEAD", "GET"):
            answer = await world.ask(hub_path(NAME), method)
            assert answer.status == status
            raised = stores_error(answer.headers, SUBJECT)
            assert type(raised).__name__ == error
            assert raised is not None
            assert "127.0.0.1" in raised.cause or "repository" in raised.cause
            assert "through the balancer's model store" in raised.cause


async def test_a_source_that_is_not_there_is_said_to_be_unreachable(
    hub: HubServer, tmp_path: Path
) -> None:
    async with store_world(tmp_path, hub, endpoint="http://127.0.0.1:9") as world:
        answer = await world.ask(hub_path(NAME), "HEAD")
        assert answer.status == 504
        answer = await world.ask(url_path("http://127.0.0.1:9/x.gguf"))
        assert answer.status == 504
        answer = await world.ask(url_path("file:///etc/passwd"))
        assert answer.status == 400
        answer = await world.ask("/url/%20")
        assert answer.status == 400


async def test_what_does_not_fit_the_budget_is_507_and_touches_nothing(
    hub: HubServer, tmp_path: Path
) -> None:
    async with store_world(tmp_path, hub, budget_bytes=5 * MIB) as world:
        assert (await world.ask(hub_path("README.md"))).status == 200
        answer = await world.ask(hub_path(NAME))
        assert answer.status == 507
        assert "5242880 bytes" in answer.body.decode()
        assert hub.served_bytes < MIB
        assert (await world.ask(hub_path("README.md"))).body == b"read me"


@pytest.mark.parametrize("clock", ["goes on", "goes back by years"])
async def test_the_least_recently_used_file_goes_for_another(
    hub: HubServer, tmp_path: Path, clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if clock == "goes back by years":
        dates_s = itertools.count(4e9, -1e8)
        monkeypatch.setattr(time, "time", lambda: next(dates_s))
        monkeypatch.setattr(time, "time_ns", lambda: int(next(dates_s)) * 10**9)
    files = {f"{name}.gguf": random.Random(name).randbytes(MIB) for name in "abcd"}
    hub.repositories["org/repo"].files.update(files)
    async with store_world(tmp_path, hub, budget_bytes=3 * MIB) as world:
        for name in ("a.gguf", "b.gguf", "c.gguf", "a.gguf", "d.gguf"):
            assert (await world.ask(hub_path(name))).body == files[name]
        await world.settled()
        here = {name for file in await world.store.files() for name in file.names}
        commit = hub.repositories["org/repo"].commit
        assert here == {f"hf:org/repo/{name}.gguf@{commit}" for name in "acd"}
        hub.seen.clear()
        assert (await world.ask(hub_path("b.gguf"))).body == files["b.gguf"], "it comes again"


async def test_an_arrival_that_breaks_off_goes_on_where_it_was(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.misbehave = lambda seen: (
        Misbehaviour(falls_silent_after=100)
        if seen.range is not None and seen.range[0] >= 3 * MIB
        else Misbehaviour(drops_after=3 * MIB)
    )
    async with store_world(tmp_path, hub) as world, await world.open(hub_path(NAME)) as client:
        received = 0
        while received < 3 * MIB:
            received += len(await client.receive_some())
    hub.misbehave = lambda seen: None
    before = hub.served_bytes
    async with store_world(tmp_path, hub) as world:
        assert (await world.ask(hub_path(NAME))).body == DATA
        assert hub.served_bytes - before <= len(DATA) - 3 * MIB


async def test_a_file_that_changes_under_its_readers_cuts_their_answers(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.stored["x.gguf"] = DATA
    url = f"{hub.storage_url}/storage/x.gguf"
    other = b"GGUF" + random.Random(3).randbytes(len(DATA) - 4)
    gate = threading.Event()

    def change(seen: Seen) -> Misbehaviour | None:
        if seen.range is not None and seen.range[0] >= 2 * MIB:
            hub.stored["x.gguf"] = other
            return None
        return Misbehaviour(drops_after=2 * MIB)

    hub.misbehave = change
    async with store_world(tmp_path, hub) as world:
        answer = await world.ask(url_path(url))
        assert DATA.startswith(answer.body) or other.startswith(answer.body)
        hub.misbehave = lambda seen: None
        answer = await world.ask(url_path(url))
        assert answer.body == other
    gate.set()


async def test_nobody_waits_so_the_arrival_ends(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddler_trio.processes.model_store.arrival.UNWANTED_S", 0.05)
    asked = threading.Event()

    def silent(seen: Seen) -> Misbehaviour:
        asked.set()
        return Misbehaviour(falls_silent_after=100)

    hub.misbehave = silent
    async with store_world(tmp_path, hub) as world:
        client = await world.open(hub_path(NAME), range="bytes=50-60")
        assert await trio.to_thread.run_sync(asked.wait, 5)
        key = f"hub/models--org--repo/blobs/{sha256(DATA)}"
        arrival = world.arrivals.find(key)
        assert arrival is not None
        await client.aclose()
        with trio.fail_after(50):
            await world.settled()
        assert arrival.is_given_up
        assert world.arrivals.find(key) is None


@pytest.mark.thorough
async def test_every_answer_is_of_the_version_that_its_validator_names(
    hub: HubServer, tmp_path: Path
) -> None:
    versions = [b"GGUF" + random.Random(n).randbytes(4 * MIB) for n in range(4)]
    by_etag = {f'"{sha256(data)[:32]}"': data for data in versions}
    hub.stored["x.gguf"] = versions[0]
    later = iter(versions[1:])

    def change(seen: Seen) -> Misbehaviour:
        if seen.range is not None and seen.range[0] > 0:
            hub.stored["x.gguf"] = next(later, versions[-1])
        return Misbehaviour(drops_after=MIB + 10)

    hub.misbehave = change
    url = f"{hub.storage_url}/storage/x.gguf"
    answers: list[tuple[int, Answered]] = []
    async with store_world(tmp_path, hub) as world:

        async def read(seed: int) -> None:
            dice = random.Random(seed)
            for _ in range(25):
                start = dice.randrange(2 * MIB)
                answer = await world.ask(url_path(url), range=f"bytes={start}-{start + 100_000}")
                answers.append((start, answer))

        async with trio.open_nursery() as readers:
            for seed in range(6):
                readers.start_soon(read, seed)
    good = [(start, answer) for start, answer in answers if answer.status == 206]
    assert len(good) > 20
    for start, answer in good:
        data = by_etag[answer.headers["etag"]]
        assert data[start : start + 100_001].startswith(answer.body), "bytes of another version"
