"""systemd's notification socket, with a real datagram socket at the other end."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from paddler_trio.system.systemd_notify import SystemdNotifier, show_drain


class Listener:
    """The end that systemd holds: what arrived, in order."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def received(self) -> list[str]:
        messages: list[str] = []
        while True:
            try:
                messages.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listener]:
    abstract = f"@paddler-trio-test-{uuid.uuid4()}"
    end = Listener(abstract if request.param == "abstract" else str(tmp_path / "notify"))
    yield end
    end.close()


def test_ready_status_and_stopping_arrive_as_systemd_reads_them(listener: Listener) -> None:
    notifier = SystemdNotifier.from_environment({"NOTIFY_SOCKET": listener.address})
    notifier.ready("serving on 127.0.0.1:8061")
    notifier.status("draining\n3 requests")
    notifier.stopping()
    assert listener.received() == [
        "READY=1\nSTATUS=serving on 127.0.0.1:8061",
        "STATUS=draining 3 requests",
        "STOPPING=1",
    ]


def test_a_reload_has_a_stamp_and_ends_with_the_status_as_before(listener: Listener) -> None:
    notifier = SystemdNotifier.from_environment({"NOTIFY_SOCKET": listener.address})
    notifier.ready("serving")
    before_usec = time.monotonic_ns() // 1000
    notifier.reloading()
    notifier.reloaded()
    _, reloading, reloaded = listener.received()
    assert reloaded == "READY=1\nSTATUS=serving"
    word, _, stamp = reloading.partition("\nMONOTONIC_USEC=")
    assert word == "RELOADING=1"
    assert before_usec <= int(stamp) <= time.monotonic_ns() // 1000


async def test_a_drain_asks_for_time_once_a_second_and_shows_what_is_left(
    listener: Listener, autojump_clock: MockClock
) -> None:
    notifier = SystemdNotifier.from_environment({"NOTIFY_SOCKET": listener.address})
    left = [3, 2, 1]
    with trio.move_on_after(2.5):
        await show_drain(notifier, lambda: left.pop(0))
    assert listener.received() == [
        "EXTEND_TIMEOUT_USEC=10000000\nSTATUS=draining: 3 requests left",
        "EXTEND_TIMEOUT_USEC=10000000\nSTATUS=draining: 2 requests left",
        "EXTEND_TIMEOUT_USEC=10000000\nSTATUS=draining: 1 request left",
    ]


def test_another_main_process_is_named_and_speaks_alone_from_then_on(listener: Listener) -> None:
    before = {"NOTIFY_SOCKET": listener.address, "WATCHDOG_USEC": "20000000"}
    notifier = SystemdNotifier.from_environment(dict(before))
    assert notifier.variables() == before
    notifier.main_process(4711)
    notifier.ready("serving")
    notifier.stopping()
    assert listener.received() == ["MAINPID=4711"]
    assert SystemdNotifier.from_environment(notifier.variables()).is_listening is False


def test_children_do_not_inherit_what_systemd_gave_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/notify")
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert SystemdNotifier.from_environment().watchdog_s == 30
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)


async def test_the_watchdog_is_pinged_at_half_its_interval(
    listener: Listener, autojump_clock: MockClock
) -> None:
    notifier = SystemdNotifier.from_environment(
        {
            "NOTIFY_SOCKET": listener.address,
            "WATCHDOG_USEC": "20000000",
            "WATCHDOG_PID": str(os.getpid()),
        }
    )
    with trio.move_on_after(35):
        await notifier.run_watchdog()
    assert listener.received() == ["WATCHDOG=1"] * 4  # at 0, 10, 20 and 30 s


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "20000000"},
        {"NOTIFY_SOCKET": "/nowhere/notify"},
        {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "1"},
    ],
)
async def test_a_watchdog_nobody_asked_us_for_only_waits(
    environment: dict[str, str], autojump_clock: MockClock
) -> None:
    notifier = SystemdNotifier.from_environment(environment)
    assert notifier.watchdog_s is None
    with trio.move_on_after(3600) as scope:
        await notifier.run_watchdog()
    assert scope.cancelled_caught


@pytest.mark.parametrize("address", ["", "vsock:2:1234"])
def test_without_a_socket_we_can_write_to_nothing_happens(address: str) -> None:
    notifier = SystemdNotifier.from_environment({"NOTIFY_SOCKET": address})
    notifier.ready("serving")
    notifier.stopping()


def test_a_socket_that_is_gone_is_logged_and_no_more(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    notifier = SystemdNotifier.from_environment({"NOTIFY_SOCKET": str(gone)})
    with capture_logs() as logged:
        notifier.ready("serving")
        notifier.status("as before")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as back:
            back.bind(str(gone))
            notifier.status("there again")
            notifier.status("still there")
        notifier.status("gone again")  # a closed socket refuses what is sent to its name
    assert [(entry["event"], entry["message"]) for entry in logged] == [
        ("systemd was not notified", "READY=1\nSTATUS=serving"),
        ("systemd is notified again", "STATUS=there again"),
        ("systemd was not notified", "STATUS=gone again"),
    ]


def test_a_full_socket_never_blocks_us(listener: Listener) -> None:
    notifier = SystemdNotifier.from_environment({"NOTIFY_SOCKET": listener.address})
    with capture_logs() as logged:
        for number in range(5000):  # nobody reads meanwhile; the kernel queues some hundreds
            notifier.status(str(number))
    arrived = listener.received()
    assert arrived == [f"STATUS={number}" for number in range(len(arrived))]
    assert 0 < len(arrived) < 5000
    assert [entry["message"] for entry in logged] == [f"STATUS={len(arrived)}"]
