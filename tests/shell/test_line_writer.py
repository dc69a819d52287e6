"""The access log's file: appended in the background, opened anew, and never waited for."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.errors import ConfigurationError
from paddler_trio.telemetry import line_writer as line_writer_module
from paddler_trio.telemetry.line_writer import MAX_WAITING, LineWriter


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer_module, "FLUSH_S", 0.3)
    monkeypatch.setattr(line_writer_module, "REOPEN_S", 0.3)


def open_files() -> list[str]:
    return [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.exists()]


async def written(writer: LineWriter, lines: int) -> None:
    with trio.fail_after(50):
        while writer.num_written < lines:  # noqa: ASYNC110
            await trio.sleep(0.005)  # a thread's work is all there is to watch


async def test_lines_are_appended_in_their_order_and_all_are_there_at_the_end(
    tmp_path: Path,
) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(b"before\n")
    path.chmod(0o600)
    writer = LineWriter(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        for number in range(100):
            writer.put(b"%d\n" % number)
        await written(writer, 100)
        writer.put(b"last\n")
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    expected = b"before\n" + b"".join(b"%d\n" % number for number in range(100)) + b"last\n"
    assert path.read_bytes() == expected
    assert (writer.num_written, writer.num_dropped) == (101, 0)
    new = LineWriter(tmp_path / "new.log")
    assert stat.S_IMODE((tmp_path / "new.log").stat().st_mode) & 0o027 == 0
    assert "0 of 8192 lines wait" in repr(new)


async def test_after_a_reopening_lines_go_into_the_new_file(tmp_path: Path) -> None:
    path, old = tmp_path / "access.log", tmp_path / "access.log.1"
    writer = LineWriter(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        writer.put(b"one\n")
        await written(writer, 1)
        path.rename(old)
        await writer.reopen()
        writer.put(b"two\n")
        await written(writer, 2)
        path.unlink()
        path.mkdir()
        with capture_logs() as logs:
            await writer.reopen()
        assert [(e["event"], e["reason"]) for e in logs] == [("not reopened", "Is a directory")]
        writer.put(b"three\n")
        await written(writer, 3)
        nursery.cancel_scope.cancel()
    assert not any(str(tmp_path) in each for each in open_files())
    assert old.read_bytes() == b"one\n"


async def test_a_file_that_takes_too_long_to_open_is_used_and_the_old_one_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    path, old = tmp_path / "access.log", tmp_path / "access.log.1"
    writer = LineWriter(path)
    path.rename(old)
    opened, may_open = line_writer_module._opened, threading.Event()

    def opened_late(path: Path) -> tuple[int, bool]:
        assert may_open.wait(20)
        return opened(path)

    monkeypatch.setattr(line_writer_module, "_opened", opened_late)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.reopen)
            await trio.sleep(line_writer_module.REOPEN_S + 1)
            may_open.set()
    assert logs == []
    assert [each for each in open_files() if str(tmp_path) in each] == [str(path)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_a_disk_that_is_full_costs_lines_and_a_warning(tmp_path: Path) -> None:
    writer = LineWriter(Path("/dev/full"))
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            for _ in range(2):
                writer.put(b"lost\n")
                with trio.fail_after(50):
                    while writer._waiting or writer._thread.borrowed_tokens:  # noqa: ASYNC110
                        await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
    assert writer.num_dropped == 2
    assert [(e["lines"], e["reason"]) for e in logs] == [(1, "No space left on device")] * 2


async def test_a_line_does_not_go_behind_half_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(b"of a crash")
    room_bytes = 12
    write = os.write

    def write_while_there_is_room(descriptor: int, data: memoryview) -> int:
        nonlocal room_bytes
        if not room_bytes:
            raise OSError(28, "No space left on device")
        written = write(descriptor, bytes(data[:room_bytes]))
        room_bytes -= written
        return written

    monkeypatch.setattr(line_writer_module.os, "write", write_while_there_is_room)
    writer = LineWriter(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        for line in (b"one\n", b"two\n", b"three\n", b"four\n"):
            writer.put(line)
        await written(writer, 2)
        assert writer.num_dropped == 2, "half of the third line is none"
        room_bytes = 100
        writer.put(b"five\n")
        await written(writer, 3)
        nursery.cancel_scope.cancel()
    assert path.read_bytes() == b"of a crash\none\ntwo\nthr\nfive\n"


async def test_a_disk_that_hangs_holds_nobody_up_and_what_waits_is_bounded(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # and never reads
    try:
        writer = LineWriter(path)
        line = b"x" * 1023 + b"\n"
        with capture_logs() as logs:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.run)
                for _ in range(1000):
                    writer.put(line)
                with trio.fail_after(50):
                    while not writer._thread.borrowed_tokens:  # noqa: ASYNC110
                        await trio.sleep(0.005)
                for _ in range(MAX_WAITING + 7):
                    writer.put(line)  # or this would never end
                assert writer.num_dropped == 7
                assert logs[0]["event"] == "access log lines dropped", "while it hangs"
                await writer.reopen()
                nursery.cancel_scope.cancel()
        events = [each["event"] for each in logs]
        assert "not reopened" in events
        assert events[-1] == "access log lines dropped"
        assert writer.num_dropped == 1000 + MAX_WAITING + 7
    finally:
        os.close(reader)  # the write that hangs fails, and its thread ends


@pytest.mark.parametrize("name", ["missing/access.log", "."])
async def test_a_file_that_cannot_be_written_is_refused_at_the_start(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"--access-log-file .* cannot be written: "):
        LineWriter(tmp_path / name)


async def test_a_pipe_without_a_reader_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        LineWriter(tmp_path / "pipe")


async def test_standard_output_that_would_block_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, descriptor = os.pipe()
    os.set_blocking(descriptor, False)
    monkeypatch.setattr(line_writer_module, "STANDARD_OUTPUT", descriptor)
    writer = LineWriter(None)
    lines = [b"%d" % number * 1000 + b"\n" for number in range(200)]
    read = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        for line in lines:
            writer.put(line)
        with trio.fail_after(50):
            while len(read) < sum(map(len, lines)):
                read += await trio.to_thread.run_sync(os.read, reader, 65_536)
        await written(writer, 200)
        await writer.reopen()
        nursery.cancel_scope.cancel()
    os.close(reader)
    os.close(descriptor)
    assert read == b"".join(lines)
    assert writer.num_dropped == 0
