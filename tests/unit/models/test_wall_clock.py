"""The wall clock may be set anew, by years, while models are fetched: nothing waits for it.

Time-outs, pauses, speeds and back-off are Trio's clock, which never jumps. The wall clock is read
where a date outlives a process, and only there.
"""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

import paddler_trio
from paddler_trio.models.cache.cache_place import held_lock
from paddler_trio.models.download.download_progress import (
    MIN_INTERVAL_S,
    PERMANENT_RETRY_S,
    DownloadProgress,
    ProgressMeter,
)
from paddler_trio.models.download.model_download import wait_for_retry
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.client.download_errors import LockHeldError, Subject
from paddler_trio.net.client.http_client import Timeouts
from paddler_trio.net.client.http_exchange import retry_after_of

SUBJECT = Subject("https://host/m.gguf", is_hub=False)
DATES_OUTLIVE = {
    ("agent/link/cache_answers.py", "prune_answer"): "of files, whose last use is on the disk",
    ("agent/link/cache_answers.py", "_listed_local"): "shown to people",
    ("agent/link/link_tasks.py", "_carried_out"): "shown to people: since when it is unloaded",
    ("agent/link/join_request.py", "join"): "when a machine joined",
    ("agent/link/agent_folder.py", "age_s"): "of a file",
    ("system/durable.py", "_remove_leftovers"): "of files that killed writers left",
    ("models/cache/cache_place.py", "note_verified"): "of a file's last verification",
    ("processes/model_store/inventory.py", "note_use"): "of a file's last use",
    ("processes/model_store/retention.py", "planned"): "of files, whose last use is on the disk",
    ("processes/model_store/upload_file.py", "expired_uploads"): "of uploads, in days",
}
"""Who may read the wall clock, and which date it is."""
WALL_CLOCKS = (
    *("time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.CLOCK_REALTIME"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
)


@pytest.fixture(autouse=True)
def jumping_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the wall clock is years after the one before, or before it."""
    dates_s = itertools.cycle([1.7e9, 4e9, 0.0, 2.2e9])
    monkeypatch.setattr(time, "time", lambda: next(dates_s))
    monkeypatch.setattr(time, "time_ns", lambda: int(next(dates_s)) * 10**9)


def test_only_dates_that_outlive_a_process_are_of_the_wall_clock() -> None:
    package = Path(paddler_trio.__file__).parent
    found = set()
    rooms = ("models", "processes/model_store", "agent")
    files = [path for room in rooms for path in (package / room).rglob("*.py")]
    for path in [*files, package / "system" / "durable.py"]:
        text = path.read_text()
        if not any(name in text for name in WALL_CLOCKS):
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                _is_wall_clock(node) for node in ast.walk(function)
            ):
                found.add((str(path.relative_to(package)), function.name))
    assert found == DATES_OUTLIVE.keys()


def _is_wall_clock(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(ast.Name(module), name):
            return f"{module}.{name}" in WALL_CLOCKS
    return False


async def test_speed_and_remaining_time_are_of_seconds_that_passed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    seen: list[DownloadProgress | None] = []
    meter = ProgressMeter(seen.append)
    meter.begin(DownloadProgress(source="host", filename="m.gguf", total_bytes=10_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(meter.run)
        for _ in range(8):
            await trio.sleep(0.5)
            meter.add(500)
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    last = seen[-1]
    assert last is not None
    assert last.bytes_per_s == pytest.approx(1000, rel=0.2)
    assert last.remaining_s == pytest.approx(6, rel=0.2)
    assert len(seen) <= 4 * 4 + 2, "four times a second"


async def test_a_model_of_many_small_parts_is_no_storm_of_reports(
    autojump_clock: trio.testing.MockClock,
) -> None:
    seen: list[tuple[float, DownloadProgress]] = []

    def publish(progress: DownloadProgress | None) -> None:
        if progress is not None:
            seen.append((trio.current_time(), progress))

    meter = ProgressMeter(publish)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(meter.run)
        for part in range(1, 201):
            meter.begin(DownloadProgress(source="h", filename=f"{part}.gguf", file_index=part))
            meter.begin_phase("saving")
            await trio.sleep(0.03)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    times = [at_s for at_s, _ in seen]
    assert len(times) > 20, "it is shown all the time"
    assert min(after - at for at, after in itertools.pairwise(times)) >= MIN_INTERVAL_S - 1e-9
    assert seen[0][1].file_index == 1
    assert (seen[-1][1].file_index, seen[-1][1].phase) == (200, "saving"), "the last one is seen"


async def test_a_lock_is_waited_for_as_long_as_its_time_out_says(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    path, began_s, looks = tmp_path / "lock", trio.current_time(), itertools.count()

    async def progress() -> int:
        return min(next(looks), 3)  # the holder works for a moment, and then no more

    async with held_lock(path, SUBJECT, Timeouts(), progress):
        with pytest.raises(LockHeldError):
            async with held_lock(path, SUBJECT, Timeouts(lock_s=120, lock_poll_s=1), progress):
                pass
    assert trio.current_time() - began_s == pytest.approx(124, abs=2)


async def test_ten_minutes_are_ten_minutes(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    settings = HubSettings(cache=tmp_path, url_cache=tmp_path)
    began_s = trio.current_time()
    fingerprint = settings.token_fingerprint()
    await wait_for_retry(settings, PERMANENT_RETRY_S, fingerprint, poll_s=60)
    assert trio.current_time() - began_s == pytest.approx(600)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7),
        ("Fri, 31 Dec 1999 23:59:59 GMT", None),
        ("Fri, 31 Dec 2100 23:59:59 GMT", None),
        ("-5", None),
    ],
)
def test_a_servers_date_to_come_again_is_compared_with_no_clock(
    text: str, seconds: float | None
) -> None:
    assert retry_after_of(text) == seconds


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which holds the lock."""
    program = (
        "import fcntl, sys\n"
        f"file = open({str(tmp_path / 'lock')!r}, 'w')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield holder
    finally:
        holder.kill()
        holder.communicate()


async def test_the_lock_of_a_holder_that_was_killed_is_free(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    looks = itertools.count(1)

    async def kill_at_the_second_look() -> int:
        look = next(looks)
        if look == 2:
            holder.kill()
            await trio.to_thread.run_sync(holder.wait)
        return look

    timeouts = Timeouts(lock_s=60, lock_poll_s=0.001)
    with trio.fail_after(60):
        async with held_lock(tmp_path / "lock", SUBJECT, timeouts, kill_at_the_second_look):
            assert next(looks) == 3
