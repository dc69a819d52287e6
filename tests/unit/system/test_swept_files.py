"""Small files are replaced as a whole, and what killed writers left is swept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paddler_trio.balancer.fleet.state_database import content
from paddler_trio.balancer.keys.api_keys import KeyFile, KeyScope, read_key_file, write_key_file
from paddler_trio.net.joining.agent_credential import read_private
from paddler_trio.system.durable import replace_whole, sweep, write_durably

ENDED = 2**22 + 1
"""No process has such a number."""


def left(path: Path, writer: str, age_s: float) -> Path:
    """A file that a writer left so long ago."""
    file = path.with_name(f".{path.name}.{writer}")
    file.write_bytes(b"half")
    os.utime(file, (time.time() - age_s,) * 2)
    return file


def test_a_file_is_replaced_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    replace_whole(path, b"one")
    replace_whole(path, b"two")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        replace_whole(tmp_path / "folder", b"x")
    with pytest.raises(FileNotFoundError):
        replace_whole(tmp_path / "none" / "keys.json", b"x")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_who_reads_at_a_start_sweeps_what_was_left(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_key_file(path, KeyFile(guarded=frozenset({KeyScope.INFERENCE})))
    for read in (
        lambda: read_key_file(path),
        lambda: read_private(path, limit_bytes=1000),
        lambda: content(path, limit_bytes=1000),
        lambda: replace_whole(path, b"x"),
    ):
        gone = [
            left(path, f"{ENDED}.7.fresh", 2),
            left(path, f"{os.getpid()}.7.fresh", time.time()),  # of the one before in a container
        ]
        read()
        assert not any(file.exists() for file in gone)
    assert [each.name for each in tmp_path.iterdir()] == ["keys.json"]


def test_what_is_being_written_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    kept = [
        left(path, f"{os.getpid()}.7.fresh", -60),
        left(path, f"{os.getppid()}.7.fresh", 4000),
        left(path, f"{ENDED}.7.fresh", -60),
        left(path, "ab3_de9f", 100),
        left(path, "swp", 4000),
        left(path, "backup-of-keys", 4000),
        left(tmp_path / "other.json", f"{ENDED}.7.fresh", 4000),
    ]
    sweep(path)
    assert all(file.exists() for file in kept)
    write_durably(path, b"x")  # in a cache, which containers share
    assert all(file.exists() for file in kept)
    sweep(path, age_s=-3600)  # however young
    assert [file.exists() for file in kept] == [True, True, False, True, True, True, True]


def test_writers_that_are_killed_leave_nothing_for_long(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from paddler_trio.system import durable\n"
        "durable.durably_replace = lambda *pair: print('half', flush=True) or sys.stdin.read()\n"
        f"durable.replace_whole(Path({str(path)!r}), b'x')\n"
    )
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"half\n"
            writer.send_signal(signal.SIGKILL)
    assert len(list(tmp_path.iterdir())) >= 1
    for file in tmp_path.iterdir():
        os.utime(file, (time.time() - 2,) * 2)
    sweep(path)
    assert list(tmp_path.iterdir()) == []
