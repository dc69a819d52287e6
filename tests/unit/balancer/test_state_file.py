"""A state file is a regular file, and one balancer's alone."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from paddler_trio.balancer.fleet.fleet_database import open_fleet_database
from paddler_trio.balancer.fleet.state_database import state_file
from paddler_trio.balancer.fleet.state_lock import locked
from paddler_trio.errors import StateDatabaseError


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as each:
        each.bind(str(path))


def a_link(path: Path) -> None:
    target = path.with_name("target")
    target.write_text("someone else's")
    path.symlink_to(target)


KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a folder": os.mkdir,
    "a socket": a_socket,
    "a symbolic link": a_link,
}


@pytest.mark.parametrize("name", ["state.json", "state.json.fleet.json"])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_no_regular_file_is_refused_and_left_as_it_is(
    tmp_path: Path, kind: str, name: str
) -> None:
    """Whoever opened the FIFO would wait for its writer for ever."""
    path = tmp_path / name
    KINDS[kind](path)
    mode = path.lstat().st_mode
    database = open_fleet_database(f"file://{tmp_path}/state.json")
    with trio.fail_after(20), pytest.raises(StateDatabaseError, match=f"{name} is {kind}, not a"):
        await database.read()
    assert path.lstat().st_mode == mode
    if kind == "a symbolic link":
        assert path.read_text() == "someone else's"


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/full"])
async def test_a_device_is_no_state_file(device: str) -> None:
    with pytest.raises(StateDatabaseError, match=f"{device} is a device, not a regular file"):
        await open_fleet_database(f"file://{device}").read()


async def test_a_write_replaces_a_link_and_never_what_it_names(tmp_path: Path) -> None:
    """A link that was put there after the file was read."""
    path, target = tmp_path / "state.json", tmp_path / "target"
    database = open_fleet_database(f"file://{path}")
    stored = await database.read()
    target.write_text("someone else's")
    path.unlink()
    path.symlink_to(target)
    await database.write(stored)
    assert target.read_text() == "someone else's"
    assert stat.S_ISREG(path.lstat().st_mode)


def test_a_state_file_is_locked_while_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with locked(path):
        with (
            pytest.raises(StateDatabaseError, match=rf"process {os.getpid()}\) uses {path}"),
            locked(path),
        ):
            raise AssertionError("both hold it")
        with locked(tmp_path / "another.json"):
            pass
    with locked(path):
        pass


def test_a_full_disk_costs_the_locks_number_and_not_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    program = (
        "import pathlib, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"  # no file may grow
        "from paddler_trio.balancer.fleet.state_lock import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        try:
            assert holder.stdout is not None
            told = [holder.stdout.readline(), holder.stdout.readline()]
            assert "the lock does not name its holder" in told[0]
            assert told[1] == "held\n"
            with (
                pytest.raises(StateDatabaseError, match=r"\(process unknown\)"),
                locked(path),
            ):
                pass
        finally:
            holder.kill()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    held = (
        "import sys, pathlib\n"
        "from paddler_trio.balancer.fleet.state_lock import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", held, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"held\n"
            with (
                pytest.raises(StateDatabaseError, match=rf"another balancer \(process {other.pid}"),
                locked(path),
            ):
                raise AssertionError("both hold it")
        finally:
            other.kill()
            other.wait()
    with locked(path):
        assert (tmp_path / "state.json.lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("kind", ["a FIFO", "a folder", "a socket", "a symbolic link"])
def test_a_lock_that_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "state.json.lock"
    KINDS[kind](path)
    with (
        pytest.raises(StateDatabaseError, match=r"state\.json\.lock"),
        locked(tmp_path / "state.json"),
    ):
        raise AssertionError("it was taken")


def test_memory_needs_no_lock() -> None:
    assert state_file("memory://") is None
    with locked(None), locked(None):
        pass
