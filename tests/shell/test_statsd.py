"""Reports to a StatsD server over real datagrams, and servers that are not there."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from paddler_trio.telemetry import statsd
from paddler_trio.telemetry.statsd import StatsdExporter

REPORT = [b"p.slots_total:8|g", b"p.requests_buffered:0|g"]


@contextmanager
def receiver(port: int = 0) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", port))
        sock.setblocking(False)
        yield sock


def read_all(sock: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(sock.recv(2000))
        except BlockingIOError:
            return found


def exporter(port: int, *, host: str = "127.0.0.1", waiting: int = 0) -> StatsdExporter:
    def gauges() -> Mapping[str, int]:
        return {"slots_total": 8, "requests_buffered": waiting}

    return StatsdExporter(host, port, "p", 10.0, gauges)


async def test_a_report_at_once_and_then_at_every_interval(autojump_clock: MockClock) -> None:
    with receiver() as sock:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exporter(sock.getsockname()[1]).run)
            await trio.sleep(1)
            assert read_all(sock) == REPORT
            await trio.sleep(8)
            assert read_all(sock) == []
            await trio.sleep(2)
            assert read_all(sock) == REPORT
            await trio.sleep(30)
            assert read_all(sock) == REPORT * 3
            nursery.cancel_scope.cancel()


async def test_a_cycle_with_a_negative_value_is_left_out(autojump_clock: MockClock) -> None:
    with receiver() as sock:
        with trio.move_on_after(25):
            await exporter(sock.getsockname()[1], waiting=-1).run()
        assert read_all(sock) == []


async def test_nobody_listens_and_then_somebody_does(autojump_clock: MockClock) -> None:
    with receiver() as sock:
        port = sock.getsockname()[1]
    sent = exporter(port)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sent.run)
            await trio.sleep(65)
            with receiver(port) as sock:
                await trio.sleep(20)
                assert read_all(sock)[-2:] == REPORT
            nursery.cancel_scope.cancel()
    events = [entry["event"] for entry in logs]
    assert events == [
        "metrics do not reach StatsD; trying again at every report",
        "StatsD takes metrics again",
    ]
    assert sent.failures >= 3


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_name_that_is_not_found_is_looked_up_again(
    hangs: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def getaddrinfo(host: str, port: int, *, type: int) -> list[object]:  # noqa: A002
        asked.append(host)
        if len(asked) < 3:
            if hangs:
                await trio.sleep_forever()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(statsd.trio.socket, "getaddrinfo", getaddrinfo)
    with receiver() as sock, capture_logs() as logs:
        with trio.move_on_after(45):
            await exporter(sock.getsockname()[1], host="metrics.example").run()
        assert read_all(sock)[:2] == REPORT
    assert asked == ["metrics.example"] * 3
    assert len(logs) == 2, "one when it fails, one when it works again"


async def test_a_full_buffer_costs_the_report_and_nothing_else(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiver() as sock:
        sent = exporter(sock.getsockname()[1])
        real_send = socket.socket.send
        refusals = iter([BlockingIOError(11, "Resource temporarily unavailable")])

        def send(self: socket.socket, data: bytes) -> int:
            for refusal in refusals:
                raise refusal
            return real_send(self, data)

        monkeypatch.setattr(socket.socket, "send", send)
        with trio.move_on_after(15):
            await sent.run()
        assert read_all(sock) == REPORT
        assert (sent.failures, sent.sent) == (1, 2)
