"""What only Linux offers, and the way that is gone elsewhere: both are tried on each function."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from paddler_trio.balancer.assembly.balancer_daemon import handover_problem
from paddler_trio.balancer.hot_restart import handover_channel
from paddler_trio.balancer.hot_restart.handover_channel import ONLY_LINUX
from paddler_trio.errors import HandoverError
from paddler_trio.models.cache.content_hash import hash_of_file
from paddler_trio.processes.preparation import job_limits
from paddler_trio.system import machine
from paddler_trio.system.behind_tokens import go_behind_tokens
from paddler_trio.system.kernel import socket_options
from paddler_trio.system.kernel.process_descriptors import (
    has_ended,
    own_process_descriptor,
    signal_process,
)
from paddler_trio.system.kernel.socket_options import (
    allow_unacknowledged,
    descriptors_in,
    message_pair,
    wait_hung_up,
    watch_silence,
)
from paddler_trio.system.ready_sockets import read_while, run_ready_sockets
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.system.thread_priority import LOWEST

ELSEWHERE = "freebsd14"
CHILD = """
import os, socket, sys
sys.platform = sys.argv[2]
from paddler_trio.system.kernel.process_descriptors import own_process_descriptor
with socket.socket(fileno=int(sys.argv[1])) as parent:
    descriptor = own_process_descriptor()
    socket.send_fds(parent, [b"."], [descriptor])
os.close(descriptor)
sys.stdin.read()
"""


@pytest.fixture(params=["linux", ELSEWHERE])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The system that the code believes to run on."""
    name: str = request.param
    monkeypatch.setattr(sys, "platform", name)
    return name


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", ELSEWHERE)


@pytest.fixture
def child(platform: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process that lives until its input ends, and its own descriptor for itself."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(theirs.fileno()), platform],
            stdin=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )
        with process:
            theirs.close()
            ours.settimeout(30)
            _, [descriptor], _, _ = socket.recv_fds(ours, 1, 1)
            yield process, descriptor
            os.close(descriptor)
            process.kill()


def wait_readable(descriptor: int) -> None:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    assert poller.poll(30_000)


def test_a_process_descriptor_tells_of_the_end_and_signals_nobody_after_it(
    child: tuple[subprocess.Popen[bytes], int],
) -> None:
    process, descriptor = child
    assert not has_ended(descriptor)
    signal_process(descriptor, process.pid, 0)
    signal_process(descriptor, process.pid, signal.SIGTERM)
    wait_readable(descriptor)
    assert has_ended(descriptor)
    assert process.wait(30) == -signal.SIGTERM
    # whatever has this id now is somebody else's
    with pytest.raises(ProcessLookupError):
        signal_process(descriptor, process.pid, 0)


def open_descriptors() -> set[int]:
    listed = {int(each.name) for each in Path("/proc/self/fd").iterdir()}
    return {each for each in listed if Path(f"/proc/self/fd/{each}").exists()}


def test_children_of_a_process_do_not_outlive_its_descriptor(elsewhere: None) -> None:
    before = open_descriptors()
    descriptor = own_process_descriptor()
    try:
        assert not has_ended(descriptor)
        (held,) = open_descriptors() - before - {descriptor}
        assert not os.get_inheritable(held), "the end that the process holds"
        os.close(held)
        assert has_ended(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("name", ["linux", ELSEWHERE])
def test_a_process_whose_parent_has_ended_already_ends(name: str) -> None:
    program = (
        f"import os, sys; sys.platform = {name!r}\n"
        "from paddler_trio.system.kernel.process_descriptors import die_with_parent\n"
        "die_with_parent(os.getppid()); print('lives', flush=True)\n"
        "die_with_parent(os.getppid() + 1); print('lives on')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "lives\n", "")


async def test_a_hang_up_is_noticed(platform: str) -> None:
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        with trio.move_on_after(0.05) as waits:
            await wait_hung_up(ours)
        assert waits.cancelled_caught, "nothing has happened yet"
        theirs.shutdown(socket.SHUT_WR)
        with trio.fail_after(5):
            await wait_hung_up(ours)


async def test_a_hang_up_behind_unread_bytes_is_noticed_when_they_were_read(
    elsewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_options, "PEEKS_EVERY_S", 0.01)
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        await theirs.send(b"unread")
        theirs.shutdown(socket.SHUT_WR)
        with trio.move_on_after(0.1) as waits:
            await wait_hung_up(ours)
        assert waits.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_hung_up, ours)
            await trio.testing.wait_all_tasks_blocked()
            assert await ours.recv(10) == b"unread"  # and two tasks may wait for one socket
            with trio.fail_after(5):
                assert await ours.recv(10) == b""


async def test_a_hang_up_of_both_sides_is_noticed_behind_unread_bytes(platform: str) -> None:
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        await theirs.send(b"unread")
        theirs.close()
        with trio.fail_after(5):
            await wait_hung_up(ours)


def test_silence_is_watched_as_far_as_the_system_can(platform: str) -> None:
    with socket.socket() as sock:
        watch_silence(sock, idle_s=7, interval_s=5, probes=4, unacknowledged_ms=9000)
        tcp = socket.IPPROTO_TCP
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(tcp, socket.TCP_KEEPINTVL) == 5
        assert sock.getsockopt(tcp, socket.TCP_KEEPCNT) == 4
        here = platform == "linux"
        assert (sock.getsockopt(tcp, socket.TCP_KEEPIDLE) == 7) is here
        assert (sock.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == 9000) is here
        allow_unacknowledged(sock, 0)
        assert sock.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == 0


def test_messages_keep_their_boundaries_and_bring_descriptors(platform: str) -> None:
    ours, theirs = message_pair(256 * 1024)
    with ours, theirs, Path(os.devnull).open() as file:
        long = b"m" * 192 * 1024
        ours.send(long)
        socket.send_fds(ours, [b"two"], [file.fileno()])
        assert theirs.recv(256 * 1024) == long
        data, ancillary, _, _ = theirs.recvmsg(100, socket.CMSG_SPACE(4))
        assert data == b"two"
        [descriptor] = descriptors_in(ancillary)
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)


async def test_sockets_are_read_by_their_tasks_where_there_is_no_epoll(platform: str) -> None:
    ours, theirs = socket.socketpair()
    got: list[bytes] = []

    def read() -> bool:
        got.append(ours.recv(100))
        return got[-1] != b""

    with ours, theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_ready_sockets)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as reading:
                reading.start_soon(read_while, ours.fileno(), read)
                for piece in (b"one", b"two"):
                    await trio.testing.wait_all_tasks_blocked()
                    theirs.send(piece)
                await trio.testing.wait_all_tasks_blocked()
                theirs.close()
            nursery.cancel_scope.cancel()
    assert got == [b"one", b"two", b""]


def test_a_process_that_moves_bytes_goes_behind(platform: str) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        go_behind_tokens(process.pid)
        if platform == "linux":
            assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
        else:
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == LOWEST
        process.kill()


def test_a_file_is_hashed(platform: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    digest = hash_of_file(path, "sha256")
    assert digest == hashlib.sha256(b"abc").hexdigest()


def test_what_a_process_maps_is_not_known_without_proc(tmp_path: Path) -> None:
    mapped = machine.mapped_bytes()
    assert mapped is not None
    assert mapped > machine.resident_bytes() > 1_000_000
    assert machine.mapped_bytes(proc=tmp_path) is None
    most = machine.resident_bytes(proc=tmp_path)
    assert most > 1_000_000, "the most that it ever held"


def test_memory_is_limited_where_it_is_known_what_is_mapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with job_limits.memory_limited(2**31), pytest.raises(MemoryError):
        bytearray(2**32)
    monkeypatch.setattr(job_limits, "mapped_bytes", lambda: None)
    with job_limits.memory_limited(0):
        assert len(bytearray(2**22)) == 2**22


def test_a_balancer_hands_over_on_linux_only(elsewhere: None, tmp_path: Path) -> None:
    with pytest.raises(HandoverError, match="only on Linux"):
        handover_channel.listen_at(tmp_path / "state.json.handover")
    with pytest.raises(HandoverError, match="only on Linux"):
        trio.run(handover_channel.connect, tmp_path / "state.json.handover")
    assert list(tmp_path.iterdir()) == []
    config = BalancerConfig(state_database=f"file://{tmp_path}/state.json")
    assert handover_problem(config) == ONLY_LINUX, "which is what SIGUSR2 says"
