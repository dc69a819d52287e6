"""A collector for tests: takes OTLP over HTTP and reads it with OpenTelemetry's own protobuf.

What does not parse, or is no export of spans, is answered 400 and kept as a problem.
"""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import attrs
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

HOLD_S = 100.0
"""How long an answer is held at most."""


@attrs.frozen
class ReceivedSpan:
    """Ids are hexadecimal digits, times Unix seconds."""

    service: str
    instance: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    start_s: float
    end_s: float
    attributes: dict[str, object]
    events: dict[str, dict[str, object]]
    is_error: bool


@attrs.define(eq=False)
class OtlpReceiver:
    """``answer``: the status of each answer; ``hold`` keeps answers back as long as it is clear."""

    url: str
    answer: int = 200
    hold: threading.Event = attrs.field(factory=threading.Event)
    headers: list[dict[str, str]] = attrs.field(factory=list)
    spans: list[ReceivedSpan] = attrs.field(factory=list)
    problems: list[str] = attrs.field(factory=list)
    raw: list[bytes] = attrs.field(factory=list)
    news: threading.Condition = attrs.field(factory=threading.Condition)

    def wait_for(
        self, is_there: Callable[[list[ReceivedSpan]], bool], *, within_s: float = 60.0
    ) -> list[ReceivedSpan]:
        """All spans so far, once they are as wanted; AssertionError if they never are."""
        give_up_s = time.monotonic() + within_s
        with self.news:
            while not is_there(self.spans):
                left_s = give_up_s - time.monotonic()
                assert left_s > 0, f"not as wanted: {self.spans}, {self.problems}"
                self.news.wait(left_s)
            return list(self.spans)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        """One request; its status."""
        with self.news:
            self.headers.append(headers)
            self.raw.append(body)
        self.hold.wait(HOLD_S)
        with self.news:
            try:
                assert path == "/v1/traces", path
                assert headers["content-type"] == "application/x-protobuf", headers
                if headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                request = ExportTraceServiceRequest.FromString(body)
                if self.answer == 200:
                    self.spans += _spans_in(request)
            except (AssertionError, DecodeError) as error:
                self.problems.append(repr(error))
                return 400
            finally:
                self.news.notify_all()
        return self.answer


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """One on a free port; gone when the block is left."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            names = {name.lower(): value for name, value in self.headers.items()}
            status = receiver.take(self.path, names, body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver = OtlpReceiver(f"http://127.0.0.1:{server.server_port}")
    receiver.hold.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _spans_in(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for of_resource in request.resource_spans:
        resource = _values(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            assert of_scope.scope.name == "paddler_trio", of_scope.scope
            for span in of_scope.spans:
                assert len(span.trace_id) == 16, span
                assert len(span.span_id) == 8, span
                assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano, span
                yield ReceivedSpan(
                    str(resource["service.name"]),
                    str(resource["service.instance.id"]),
                    span.name,
                    Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.trace_state,
                    span.start_time_unix_nano / 1e9,
                    span.end_time_unix_nano / 1e9,
                    _values(span.attributes),
                    {event.name: _values(event.attributes) for event in span.events},
                    span.status.code == 2,
                )


def _values(attributes: Iterable[KeyValue]) -> dict[str, object]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
