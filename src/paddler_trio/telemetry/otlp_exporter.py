"""Spans to an OpenTelemetry collector: OTLP over HTTP, with the SDK of the extra ``tracing``.

Nothing of the SDK is imported before an exporter is opened. Its environment variables count where
it reads them: ``OTEL_EXPORTER_OTLP_HEADERS``, ``_TIMEOUT``, ``_CERTIFICATE``, ``_COMPRESSION``,
``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES``.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.telemetry.span_data import SpanData
from paddler_trio.wire.trace_parent import TraceContext

if TYPE_CHECKING:
    import requests
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter as SdkExporter
    from opentelemetry.trace import SpanContext

TRACES_PATH: Final = "/v1/traces"
GRPC_PORT: Final = 4317
MAX_REASON_CHARS: Final = 300
MAX_ANSWER_BYTES: Final = 65_536
"""The bytes of a collector's answer; more of it is not read. One says a few bytes, or why it takes
nothing."""
MISSING: Final = (
    "--otlp-endpoint needs OpenTelemetry, which is not installed: "
    "pip install 'paddler-trio[tracing]'"
)


def traces_url(endpoint: str) -> str:
    """Return the URL that spans are sent to, from that of a collector: ``http://host:4318``, or
    with a path of its own.

    Errors:
      ConfigurationError: it is not one, or has a password in it, which a process list would show.
    """
    shown = endpoint.rpartition("@")[2][:200]
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(f"--otlp-endpoint {shown!r} is not a URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"--otlp-endpoint is {shown!r}, must be a URL such as http://127.0.0.1:4318"
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigurationError(
            "--otlp-endpoint takes scheme, host, port and path only; credentials belong into "
            "OTEL_EXPORTER_OTLP_HEADERS"
        )
    if port == GRPC_PORT:
        raise ConfigurationError(
            f"--otlp-endpoint {shown!r}: {GRPC_PORT} is the port of OTLP over gRPC, and this sends "
            "OTLP over HTTP, which collectors take on port 4318"
        )
    return endpoint if parts.path not in ("", "/") else endpoint.rstrip("/") + TRACES_PATH


def open_exporter(endpoint: str, *, service: str, instance: str) -> OtlpExporter:
    """Return an exporter to the collector at ``endpoint``; nothing is sent yet.

    Args:
      service, instance: ``service.name`` and ``service.instance.id``, unless the environment has
        others.

    Errors:
      ConfigurationError: a bad endpoint, or the extra is not installed.
    """
    url = traces_url(endpoint)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigurationError(MISSING) from error
    own = {
        "service.name": service,
        "service.instance.id": instance,
        "service.version": version("paddler-trio"),
    }
    reasons = _Reasons()
    for name in ("opentelemetry.exporter", "opentelemetry.sdk"):
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate = [reasons], False
    exporter = OTLPSpanExporter(url, session=_bounded_session())
    return OtlpExporter(exporter, _span_maker(own), reasons)


def _bounded_session() -> requests.Session:
    """Return a session that reads no more of an answer than ``MAX_ANSWER_BYTES``: requests holds
    all of it."""
    import requests
    from requests.adapters import HTTPAdapter

    class Bounded(HTTPAdapter):
        def send(self, *args: Any, **options: Any) -> requests.Response:
            response = super().send(*args, **options)
            with response.raw as answer:  # a connection with more on it is closed with it
                beginning = answer.read(MAX_ANSWER_BYTES, decode_content=False)
            response.raw = io.BytesIO(beginning)
            return response

    session = requests.Session()
    session.headers["accept-encoding"] = "identity"  # what is read is what there is
    for scheme in ("http://", "https://"):
        session.mount(scheme, Bounded())
    return session


class _Reasons(logging.Handler):
    """Keeps the newest of what the SDK would log at each failed export."""

    newest = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.newest = record.getMessage()[:MAX_REASON_CHARS]


@attrs.define(eq=False)
class OtlpExporter:
    """A :class:`~paddler_trio.telemetry.span_export.SpanExporter`."""

    _exporter: SdkExporter
    _as_sdk: Callable[[SpanData, float], ReadableSpan]
    _reasons: _Reasons

    def export(self, spans: Sequence[SpanData], *, wall_offset_s: float) -> str | None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self._exporter.export([self._as_sdk(span, wall_offset_s) for span in spans])
        except Exception as error:  # noqa: BLE001  # some versions raise what others return
            return f"{type(error).__name__}: {error}"[:MAX_REASON_CHARS]
        if result is SpanExportResult.SUCCESS:
            return None
        return self._reasons.newest or "the collector did not take them"

    def close(self) -> None:
        self._exporter.shutdown()


def _span_maker(own: Mapping[str, str]) -> Callable[[SpanData, float], ReadableSpan]:
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
    from opentelemetry.trace.status import Status, StatusCode

    resource = Resource(own).merge(OTELResourceDetector().detect())
    scope = InstrumentationScope("paddler_trio", own["service.version"])
    kinds = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
    sampled = TraceFlags(TraceFlags.SAMPLED)

    def context(trace: TraceContext, span_id: str, *, is_remote: bool) -> SpanContext:
        state = TraceState.from_header([trace.state]) if trace.state else None
        return SpanContext(int(trace.trace_id, 16), int(span_id, 16), is_remote, sampled, state)

    def make(span: SpanData, wall_offset_s: float) -> ReadableSpan:
        def unix_ns(moment_s: float) -> int:
            return int((moment_s + wall_offset_s) * 1e9)

        parent = span.parent_id
        return ReadableSpan(
            span.name,
            context(span.trace, span.span_id, is_remote=False),
            None if parent is None else context(span.trace, parent, is_remote=span.is_entry),
            resource=resource,
            attributes=span.attributes,
            events=[Event(e.name, e.attributes, unix_ns(e.at_s)) for e in span.events],
            kind=kinds[span.kind],
            status=Status() if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=unix_ns(span.start_s),
            end_time=unix_ns(span.end_s),
            instrumentation_scope=scope,
        )

    return make
