"""Whoever reads standard error, or does not: no writer waits, and lines come whole and in order."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
import tty
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import attrs
import pytest

from paddler_trio.system.logs import log_stream
from paddler_trio.system.logs.log_stream import LogStream

END_S = 60.0
AT_ONCE_S = 60.0
"""Far more than it takes, and far less than for ever."""


@attrs.define
class Pipe:
    stream: LogStream
    reader: int

    def read_until(self, ending: bytes) -> bytes:
        data = b""
        while not data.endswith(ending):
            data += os.read(self.reader, 65_536)
        return data


@pytest.fixture(params=[True, False], ids=["blocking", "non-blocking"])
def pipe(request: pytest.FixtureRequest) -> Iterator[Pipe]:
    reader, writer = os.pipe()
    os.set_blocking(writer, request.param)
    stream = LogStream(writer)
    try:
        yield Pipe(stream, reader)
    finally:
        os.close(reader)  # which ends a thread that writes
        stream.drain(END_S)
        os.close(writer)


def lines(number: int, length: int = 100) -> list[str]:
    return [f"{place:06} {'x' * length}\n" for place in range(number)]


def test_what_can_be_written_is_written_at_once(pipe: Pipe) -> None:
    before = threading.active_count()
    pipe.stream.write("one\n")
    assert os.read(pipe.reader, 100) == b"one\n"
    assert threading.active_count() == before


@pytest.mark.parametrize("length", [100, 3000, 5000, 100_000])
def test_nobody_waits_for_a_reader_and_nothing_is_lost(pipe: Pipe, length: int) -> None:
    written = lines(2_000_000 // length, length)
    began_s = time.monotonic()
    for line in written:
        pipe.stream.write(line)
    assert time.monotonic() - began_s < AT_ONCE_S
    assert pipe.read_until(written[-1].encode()) == "".join(written).encode()
    pipe.stream.drain(END_S)
    pipe.stream.write("again at once\n")
    assert os.read(pipe.reader, 100) == b"again at once\n"


def test_lines_beyond_the_bound_are_counted_and_the_log_says_so(pipe: Pipe) -> None:
    told: list[int] = []
    with (
        patch.object(log_stream, "MAX_WAITING_BYTES", 10_000),
        patch.object(log_stream.log, "warning", lambda event, lines, reason: told.append(lines)),
    ):
        written = lines(2000)
        for line in written:
            pipe.stream.write(line)
        dropped = pipe.stream.num_dropped
        assert dropped > 0
        data = b""
        while data.count(b"\n") < len(written) - dropped:
            data += os.read(pipe.reader, 65_536)
        kept = data.decode().splitlines(keepends=True)
        assert len(kept) == len(written) - dropped
        assert kept == sorted(set(kept) & set(written))
        pipe.stream.drain(END_S)
        give_up_s = time.monotonic() + END_S
        while not told:
            assert time.monotonic() < give_up_s, "nobody is told of the loss"
            time.sleep(0.001)
    assert told == [dropped]


def test_threads_that_write_at_once_mix_no_lines(pipe: Pipe) -> None:
    def write(name: str) -> None:
        for _ in range(500):
            pipe.stream.write(name * 200 + "\n")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(END_S)
    data = b""
    while data.count(b"\n") < 2000:
        data += os.read(pipe.reader, 65_536)
    assert set(data.split(b"\n")) == {*(name.encode() * 200 for name in "abcd"), b""}


def test_a_terminal_that_is_held_holds_up_nobody() -> None:
    """Of lines that it has no room for it takes a part, and lets their writer wait for the rest."""
    held, descriptor = pty.openpty()
    stream = LogStream(descriptor)

    def write() -> None:
        for line in lines(2000, 333):
            stream.write(line)

    writer = threading.Thread(target=write, daemon=True)
    try:
        writer.start()
        writer.join(10)
        assert not writer.is_alive()
    finally:
        os.close(held)  # which ends the write that waits
        writer.join(END_S)
        stream.drain(END_S)
        os.close(descriptor)


def test_lines_that_no_thread_can_be_had_for_wait_for_the_next_one() -> None:
    held, descriptor = pty.openpty()
    tty.setraw(descriptor)
    stream = LogStream(descriptor)
    try:
        with patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start")):
            stream.write("one\n")
            stream.write("two\n")
        stream.write("three\n")
        stream.drain(END_S)
        assert os.read(held, 100) == b"one\ntwo\nthree\n"
        with (
            patch.object(log_stream, "MAX_WAITING_BYTES", 10),
            patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start")),
        ):
            for line in ("four\n", "five\n", "six\n"):
                stream.write(line)
        assert stream.num_dropped == 1
    finally:
        os.close(held)
        stream.drain(END_S)
        os.close(descriptor)


def test_what_a_full_disk_refuses_is_counted_and_no_line_begins_behind_half_of_another(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    program = (
        "import os, resource, sys\n"
        "from paddler_trio.system.logs.logs import configure_logs\n"
        "import structlog\n"
        "configure_logs(level='info', as_json=True)\n"
        "log = structlog.get_logger('test')\n"
        "stream = structlog.get_config()['logger_factory'].args[0]\n"
        "log.info('one')\n"
        "size = os.fstat(2).st_size\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, resource.RLIM_INFINITY))\n"
        "for _ in range(3):\n"
        "    log.info('lost')\n"
        "    stream.drain(60)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "log.info('two')\n"
    )
    with path.open("wb") as file:
        subprocess.run([sys.executable, "-c", program], stderr=file, check=True, timeout=END_S)
    first, half, *rest = path.read_text().splitlines()
    assert json.loads(first)["event"] == "one"
    assert len(half) == 20
    records = [json.loads(line) for line in rest]
    assert [each["event"] for each in records] == ["two", "log lines were lost"]
    assert (records[1]["lines"], records[1]["reason"]) == (3, "File too large")


def test_a_reader_that_is_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    stream = LogStream(writer)
    os.close(reader)
    stream.write("nobody hears this\n")
    stream.write("x" * 10_000)
    stream.drain(END_S)
    os.close(writer)


def test_a_file_takes_everything_at_once() -> None:
    with tempfile.TemporaryFile() as file:
        before = threading.active_count()
        stream = LogStream(file.fileno())
        for line in (written := lines(20, 50_000)):
            stream.write(line)
        assert threading.active_count() == before
        file.seek(0)
        assert file.read() == "".join(written).encode()
