"""Spans on their way to a collector that is there, slow, away, or refuses them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import trio
from structlog.testing import capture_logs

from otlp_receiver import HOLD_S, OtlpReceiver, otlp_receiver
from paddler_trio.telemetry import span_export as span_export_module
from paddler_trio.telemetry.otlp_exporter import open_exporter
from paddler_trio.telemetry.span_data import SpanData, SpanEvent
from paddler_trio.telemetry.span_export import MAX_WAITING, SpanExport
from paddler_trio.wire.trace_parent import TraceContext

TRACE = TraceContext("4" * 32, "5" * 16, True, True, "6" * 16, "vendor=1")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export_module, "LINGER_S", 0.01)
    monkeypatch.setattr(span_export_module, "FLUSH_S", 0.5)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "5")


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as running:
        yield running
        assert running.problems == []


def export_to(url: str) -> SpanExport:
    return SpanExport(open_exporter(url, service="paddler-trio-test", instance="i1"))


def spans() -> list[SpanData]:
    now_s = 10.0
    whole = SpanData(
        "POST /x",
        TRACE,
        TRACE.span_id,
        TRACE.parent_id,
        now_s,
        now_s + 2,
        kind="server",
        is_entry=True,
        attributes={"a.text": "é", "a.number": 7, "a.ratio": 0.5, "a.flag": True},
        events=(SpanEvent("moved", now_s + 1, {"to": "a2"}),),
        error="failed",
    )
    below = TRACE.span_below("queue")
    return [whole, SpanData("queue", TRACE, below, TRACE.span_id, now_s, now_s + 1)]


async def ended(export: SpanExport, count: int) -> None:
    """Until so many spans were sent or requests dropped."""
    with trio.fail_after(60):
        while export.num_exported + export.num_dropped < count:  # noqa: ASYNC110
            await trio.sleep(0.005)  # a thread's work is all there is to watch


async def test_a_collector_gets_what_was_made_in_its_own_format(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    export = export_to(receiver.url)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(export.run)
        wall_s, clock_s = time.time(), trio.current_time()
        export.put(spans)
        await ended(export, 2)
        nursery.cancel_scope.cancel()
    whole, queue = receiver.spans
    assert receiver.headers[0]["x-tenant"] == "a"
    assert (whole.service, whole.instance, whole.state) == ("ours", "i1", "vendor=1")
    assert (whole.trace_id, whole.span_id, whole.parent_id) == ("4" * 32, "5" * 16, "6" * 16)
    assert (whole.kind, whole.is_error, queue.kind) == ("SERVER", True, "INTERNAL")
    assert whole.attributes == {"a.text": "é", "a.number": 7, "a.ratio": 0.5, "a.flag": True}
    assert whole.events == {"moved": {"to": "a2"}}
    assert abs(whole.start_s - (10.0 - clock_s + wall_s)) < 0.5
    assert 1.99 < whole.end_s - whole.start_s < 2.01
    assert (queue.parent_id, queue.span_id) == (whole.span_id, TRACE.span_below("queue"))
    assert (export.num_exported, export.num_dropped) == (2, 0)


async def test_what_waits_at_the_end_is_still_sent(receiver: OtlpReceiver) -> None:
    export = export_to(receiver.url)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(export.run)
        for _ in range(100):
            export.put(spans)
        nursery.cancel_scope.cancel()
    assert len(receiver.spans) == 200 == export.num_exported
    assert len(receiver.raw) == 4, "32 requests at a time"


async def test_of_an_answer_without_an_end_no_more_is_read_than_a_collector_has_to_say() -> None:
    """requests would hold all of it."""
    num_sent = 0
    ended = threading.Event()
    piece = b"a" * 65_536

    def answer(listener: socket.socket) -> None:
        nonlocal num_sent
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            try:
                connection.sendall(head)
                while num_sent < 10_000:
                    connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
                    num_sent += 1
            except OSError:
                ended.set()  # it is hung up on

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        exporter = open_exporter(
            f"http://127.0.0.1:{listener.getsockname()[1]}", service="s", instance="i"
        )
        made = spans()
        problem = await trio.to_thread.run_sync(lambda: exporter.export(made, wall_offset_s=0.0))
        assert problem is None, "it has taken them"
        assert await trio.to_thread.run_sync(ended.wait, 10)
        assert num_sent < 1000, "as much as lies in the buffers of the sockets"


async def test_a_collector_that_hangs_is_not_waited_for_and_what_waits_is_bounded(
    receiver: OtlpReceiver,
) -> None:
    receiver.hold.clear()
    export = export_to(receiver.url)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(export.run)
            export.put(spans)
            with trio.fail_after(50):
                while not receiver.raw:  # noqa: ASYNC110
                    await trio.sleep(0.005)
            for _ in range(MAX_WAITING + 5):
                export.put(spans)
            assert len(receiver.raw) == 1, "the collector hangs still"
            assert export.num_dropped == 5
            cancelled_s = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - cancelled_s < HOLD_S / 2, "it waited for the collector"
    assert export.num_dropped == MAX_WAITING + 6
    (line,) = [each for each in logs if each["event"] == "spans dropped"]
    assert line["requests"] == MAX_WAITING + 6
    receiver.hold.set()


async def test_refused_spans_are_dropped_with_the_reason_in_one_line_a_minute(
    receiver: OtlpReceiver,
) -> None:
    receiver.answer = 403
    export = export_to(receiver.url)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(export.run)
            for number in range(1, 4):
                export.put(spans)
                await ended(export, number)
            receiver.answer = 200
            export.put(spans)
            await ended(export, 3 + 2)
            nursery.cancel_scope.cancel()
    assert (export.num_exported, export.num_dropped) == (2, 3)
    assert [each["requests"] for each in logs] == [1, 2], "the first at once, the others at the end"
    assert "403" in str(logs[0]["reason"])


async def test_without_a_collector_spans_are_dropped_and_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    export = export_to("http://127.0.0.1:9")
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(export.run)
            export.put(spans)
            await ended(export, 1)
            nursery.cancel_scope.cancel()
    assert export.num_dropped == 1
    assert logs[0]["reason"]
    assert repr(export) == (
        "<SpanExport 0 of 2048 requests wait, 0 spans sent, 1 requests dropped>"
    )
