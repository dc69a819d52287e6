"""Headers in growing ranges: few bytes, within a budget, from servers that misbehave."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from hub_server import HubServer, Misbehaviour, Seen, hub_server
from paddler_trio.errors import MemoryUnknownError
from paddler_trio.models.download.header_fetch import HeaderFetch
from paddler_trio.net.client.download_errors import Subject
from paddler_trio.net.client.http_client import Timeouts, open_client
from paddler_trio.net.client.http_exchange import Location

KIB = 1024
DATA = random.Random(1).randbytes(3000 * KIB)
SUBJECT = Subject("a model", is_hub=False)
TIMEOUTS = Timeouts(connect_s=5, silence_s=1)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as hub:
        hub.stored["m.gguf"] = DATA
        yield hub


def location(hub: HubServer) -> Location:
    return Location(f"{hub.storage_url}/storage/m.gguf")


async def failure(
    hub: HubServer, path: Path, *, between: Callable[[], None] = lambda: None
) -> MemoryUnknownError:
    """Of fetching 64 KiB and then 256."""

    async def grow() -> None:
        async with open_client(TIMEOUTS) as client:
            fetch = HeaderFetch(client)
            await fetch.begin(path, location(hub), SUBJECT, 64 * KIB)
            between()
            await fetch.grow(str(path), 256 * KIB)

    with pytest.raises(MemoryUnknownError) as raised:
        await grow()
    return raised.value


async def test_a_header_grows_and_nothing_is_fetched_twice(hub: HubServer, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    async with open_client(TIMEOUTS) as client:
        fetch = HeaderFetch(client)
        await fetch.begin(path, location(hub), SUBJECT, 64 * KIB)
        assert fetch.present == {str(path): 64 * KIB}
        assert path.stat().st_size == len(DATA)
        assert await fetch.grow(str(path), 65 * KIB) == 128 * KIB  # twice what was here
        assert await fetch.grow(str(path), 900 * KIB) == 900 * KIB
        assert await fetch.grow(str(path), len(DATA)) == len(DATA)
        assert path.read_bytes() == DATA
        assert fetch.fetched_bytes == len(DATA) == hub.served_bytes
    assert [seen.range for seen in hub.seen] == [
        (0, 64 * KIB - 1),
        (64 * KIB, 128 * KIB - 1),
        (128 * KIB, 900 * KIB - 1),
        (900 * KIB, len(DATA) - 1),
    ]


async def test_a_sparse_file_takes_no_more_room_than_its_header(
    hub: HubServer, tmp_path: Path
) -> None:
    size = 50 << 30

    def claims(seen: Seen) -> Misbehaviour:
        assert seen.range is not None
        return Misbehaviour(content_range=f"bytes 0-{64 * KIB - 1}/{size}")

    hub.misbehave = claims
    async with open_client(TIMEOUTS) as client:
        fetch = HeaderFetch(client)
        await fetch.begin(tmp_path / "m.gguf", location(hub), SUBJECT, 64 * KIB)
    status = (tmp_path / "m.gguf").stat()
    assert status.st_size == size
    assert status.st_blocks * 512 <= 256 * KIB


async def test_a_server_without_ranges_is_read_from_its_beginning_and_cut_off(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.misbehave = lambda seen: Misbehaviour(ignores_range=True)
    path = tmp_path / "m.gguf"
    async with open_client(TIMEOUTS) as client:
        fetch = HeaderFetch(client)
        await fetch.begin(path, location(hub), SUBJECT, 64 * KIB)
        here = await fetch.grow(str(path), 500 * KIB)
        assert fetch.fetched_bytes < 1500 * KIB
    assert here == 500 * KIB
    assert path.read_bytes()[:here] == DATA[:here]


async def test_all_files_share_one_budget(hub: HubServer, tmp_path: Path) -> None:
    async with open_client(TIMEOUTS) as client:
        fetch = HeaderFetch(client, budget_bytes=300 * KIB)
        await fetch.begin(tmp_path / "1", location(hub), SUBJECT, 100 * KIB)
        await fetch.begin(tmp_path / "2", location(hub), SUBJECT, 100 * KIB)
        assert await fetch.grow(str(tmp_path / "1"), 150 * KIB) == 200 * KIB
        with pytest.raises(MemoryUnknownError, match="larger than") as raised:
            await fetch.grow(str(tmp_path / "2"), 101 * KIB)
        assert raised.value.kind == "header_too_large"
        assert fetch.fetched_bytes == 300 * KIB >= hub.served_bytes


async def test_a_header_beyond_the_end_of_its_file_is_truncated(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.stored["m.gguf"] = DATA[: 100 * KIB]
    error = await failure(hub, tmp_path / "m.gguf")
    assert error.kind == "truncated"
    assert "has 102400 bytes, its header at least 262144" in str(error)


async def test_an_empty_file_is_no_model(hub: HubServer, tmp_path: Path) -> None:
    hub.stored["m.gguf"] = b""
    assert (await failure(hub, tmp_path / "m.gguf")).kind == "not_gguf"


async def test_a_file_that_changes_between_two_ranges_is_noticed(
    hub: HubServer, tmp_path: Path
) -> None:
    def change() -> None:
        hub.stored["m.gguf"] = bytes(len(DATA))

    error = await failure(hub, tmp_path / "m.gguf", between=change)
    assert error.kind == "unreachable"
    assert "changed" in str(error)


async def test_a_connection_that_breaks_off_is_no_reason_to_give_up(
    hub: HubServer, tmp_path: Path
) -> None:
    answers = iter([Misbehaviour(drops_after=1000), Misbehaviour(falls_silent_after=0)])
    hub.misbehave = lambda seen: next(answers, None)
    path = tmp_path / "m.gguf"
    async with open_client(TIMEOUTS) as client:
        fetch = HeaderFetch(client)
        await fetch.begin(path, location(hub), SUBJECT, 64 * KIB)
    assert path.read_bytes()[: 64 * KIB] == DATA[: 64 * KIB]


async def test_headers_that_take_too_long_are_given_up(hub: HubServer, tmp_path: Path) -> None:
    """Were it for a server that sends a byte now and then, and is never silent for long."""
    hub.misbehave = lambda seen: (
        Misbehaviour(falls_silent_after=1000) if len(hub.seen) > 1 else None
    )
    path = tmp_path / "m.gguf"
    async with open_client(Timeouts(silence_s=60)) as client:
        fetch = HeaderFetch(client, budget_s=0.5)
        await fetch.begin(path, location(hub), SUBJECT, 64 * KIB)
        with trio.fail_after(50), pytest.raises(MemoryUnknownError) as raised:
            await fetch.grow(str(path), 256 * KIB)
    assert raised.value.kind == "unreachable"
    assert "a model did not arrive within 0.5 s" in str(raised.value)


@pytest.mark.parametrize(
    ("odd", "cause"),
    [
        (Misbehaviour(status=404), "nothing there"),
        (Misbehaviour(status=403), "denies access"),
        (Misbehaviour(status=500), "answered 500"),
        (Misbehaviour(content_range="bytes 7-65542/3072000"), "was asked for bytes=0-65535"),
        (Misbehaviour(content_range="bytes 0-65535/*"), "was asked for bytes=0-65535"),
        (Misbehaviour(content_range=f"bytes 0-65535/{10**18}"), "the limit is"),
        (Misbehaviour(ignores_range=True, hides_length=True), "answered 200"),
        (Misbehaviour(drops_after=1000), "broke off"),
        (Misbehaviour(falls_silent_after=1000), "sent nothing for 1 s"),
    ],
)
async def test_a_server_that_misbehaves_is_named(
    hub: HubServer, tmp_path: Path, odd: Misbehaviour, cause: str
) -> None:
    hub.misbehave = lambda seen: odd
    error = await failure(hub, tmp_path / "m.gguf")
    assert error.kind == "unreachable"
    assert cause in str(error)
