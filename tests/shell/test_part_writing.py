"""How the bytes of a request get from memory to the file: together where they come fast."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hub_server import HubServer, Misbehaviour, Repository, hub_server
from paddler_trio.models.cache.url_cache import url_journals
from paddler_trio.models.download import partial_file, transfer
from paddler_trio.models.download.model_download import ModelDownload
from paddler_trio.models.download.partial_file import WRITE_BACK_BYTES, PartialFile, read_journal
from paddler_trio.models.download.transfer import HOLD_S, SPACE_BLOCKS, Transfer, TransferLimits
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.client.download_errors import TransferInterruptedError
from paddler_trio.net.client.http_client import Timeouts
from paddler_trio.system import durable
from paddler_trio.wire.paddler.desired_state import UrlModel

MIB = 1 << 20
DATA = b"GGUF" + random.Random(2).randbytes(24 * MIB + 73)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server({"org/repo": Repository({"README.md": b"read me"})}) as hub:
        hub.stored["m.gguf"] = DATA
        yield hub


def download(hub: HubServer, root: Path, limits: TransferLimits) -> tuple[ModelDownload, UrlModel]:
    settings = HubSettings(
        endpoint=hub.hub_url,
        cache=root / "hub",
        url_cache=root / "urls",
        timeouts=Timeouts(connect_s=5, silence_s=30),
    )
    return (
        ModelDownload(settings, lambda progress: None, limits),
        UrlModel(f"{hub.storage_url}/storage/m.gguf"),
    )


class Writes:
    """What is written, and whether two threads write at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        write_at = partial_file.write_at

        def counted(descriptor: int, start: int, data: Sequence[bytes | memoryview]) -> None:
            with self._lock:
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
                self.sizes.append(sum(map(len, data)))
            write_at(descriptor, start, data)
            with self._lock:
                self._at_once -= 1

        monkeypatch.setattr(partial_file, "write_at", counted)


async def test_blocks_that_come_fast_are_written_together_and_by_one_thread_at_a_time(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    writes = Writes(monkeypatch)  # no time passes: the clock stands still
    fetcher, model = download(hub, tmp_path, TransferLimits(workers=4, part_blocks=8))
    fetched = await fetcher.fetch(model)
    assert fetched.path.read_bytes() == DATA
    assert writes.most_at_once == 1
    assert sorted(writes.sizes) == [77, *[SPACE_BLOCKS * MIB] * 6]


@pytest.mark.parametrize("hold_s", [0.0, HOLD_S])
async def test_a_whole_block_is_here_soon_though_no_more_comes(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold_s: float
) -> None:
    monkeypatch.setattr(transfer, "HOLD_S", hold_s)
    hub.misbehave = lambda seen: Misbehaviour(falls_silent_after=2 * MIB + 5)
    here = trio.Event()

    def look(transfer: Transfer) -> None:
        if transfer.plan.here_bytes == 2 * MIB:
            here.set()

    fetcher, model = download(hub, tmp_path, TransferLimits(workers=1, part_blocks=8))
    fetcher.on_change = look
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetcher.fetch, model)
            await here.wait()
            nursery.cancel_scope.cancel()


async def test_whole_blocks_are_kept_when_a_connection_breaks(
    hub: HubServer, tmp_path: Path, mock_clock: MockClock
) -> None:
    hub.misbehave = lambda seen: Misbehaviour(drops_after=2 * MIB + 5)
    limits = TransferLimits(workers=1, part_blocks=8, failures=0)
    fetcher, model = download(hub, tmp_path, limits)
    with pytest.raises(TransferInterruptedError):
        await fetcher.fetch(model)
    journal = read_journal(next(iter(url_journals(tmp_path / "urls"))))
    assert journal is not None
    assert list(journal.here[:4]) == [1, 1, 0, 0]


def test_several_blocks_are_marked_at_once(tmp_path: Path) -> None:
    partial = PartialFile.open(tmp_path, "key", knows_hash=True)
    partial.begin(45, '"e"', block_bytes=10)
    partial.write(10, [bytes(20)], block=1)
    partial.write(40, [bytes(5)], block=4)
    partial.close()
    journal = read_journal(tmp_path / "key.journal")
    assert journal is not None
    assert list(journal.here) == [0, 1, 1, 0, 1]


def test_bytes_start_for_the_disk_as_soon_as_many_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[int, int]] = []
    begin_write_back = partial_file.begin_write_back

    def noted(descriptor: int, start: int, count: int) -> None:
        begun.append((start, count))
        begin_write_back(descriptor, start, count)

    monkeypatch.setattr(partial_file, "begin_write_back", noted)
    partial = PartialFile.open(tmp_path, "key", knows_hash=True)
    partial.begin(3 * WRITE_BACK_BYTES, '"e"')
    half = WRITE_BACK_BYTES // 2
    for start in (2 * half, 0, half, 3 * half):
        partial.write(start, [bytes(half)], block=start // MIB)
    partial.write(4 * half, [bytes(half)], block=4 * half // MIB)
    partial.close()
    assert begun == [(0, WRITE_BACK_BYTES), (WRITE_BACK_BYTES, WRITE_BACK_BYTES)]


def test_write_back_changes_no_byte_and_is_a_hint_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    with path.open("rb+") as file:
        durable.begin_write_back(file.fileno(), 0, len(DATA))
    assert path.read_bytes() == DATA
    reader, writer = os.pipe()  # no file of a disk: refused by the kernel, and no error here
    durable.begin_write_back(writer, 0, 1)
    os.close(reader)
    os.close(writer)
