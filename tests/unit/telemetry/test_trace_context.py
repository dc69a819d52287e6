"""Each request belongs to the trace of its caller or begins one."""

from __future__ import annotations

import pytest

from exchanges import exchange_for
from paddler_trio.net.server.asgi import Header
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.telemetry.trace_context import (
    Sampling,
    begin_message,
    enter_trace,
    trace_of,
)
from paddler_trio.wire.trace_parent import TraceContext, parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def scope(*headers: Header) -> Exchange:
    return exchange_for({"headers": list(headers)})


def asked(flags: bytes = b"01", *more: Header) -> Exchange:
    parent = b"00-%b-%b-%b" % (TRACE.encode(), SPAN.encode(), flags)
    return scope((b"host", b"x"), (b"traceparent", parent), *more)


def test_without_a_caller_a_trace_begins_and_stays_the_same() -> None:
    request = scope()
    trace = trace_of(request)
    assert parse_traceparent(trace.traceparent()) == trace, "unsampled, since nothing is exported"
    assert trace_of(request) is trace
    assert trace_of(scope()).trace_id != trace.trace_id


def test_where_nothing_is_exported_the_callers_span_is_passed_on() -> None:
    assert trace_of(asked()) == TraceContext(TRACE, SPAN, is_sampled=True)
    assert trace_of(asked(b"00")) == TraceContext(TRACE, SPAN)


@pytest.mark.parametrize("is_sampled", [False, True])
def test_where_spans_are_exported_ours_is_below_the_callers(is_sampled: bool) -> None:
    request = asked(
        b"01" if is_sampled else b"00", (b"tracestate", b"a=1"), (b"tracestate", b"b=2")
    )
    trace = enter_trace(request, Sampling(exports=True, ratio=0)).trace
    assert trace.span_id != SPAN
    assert trace == TraceContext(
        TRACE, trace.span_id, is_sampled, is_exported=is_sampled, parent_id=SPAN, state="a=1,b=2"
    )
    assert trace_of(request) is trace


@pytest.mark.parametrize(
    "headers",
    [
        [(b"traceparent", b"00-nonsense")],
        [(b"traceparent", b"00-%b-%b-01" % (b"\xff" * 32, b"1" * 16))],
        [(b"traceparent", b"00-%b-%b-01" % (TRACE.encode(), SPAN.encode()))] * 2,
    ],
)
def test_a_malformed_caller_is_none(headers: list[Header]) -> None:
    trace = trace_of(scope(*headers, (b"tracestate", b"a=1")))
    assert (trace.parent_id, trace.state) == (None, "")
    assert trace.trace_id != TRACE


@pytest.mark.parametrize(("ratio", "least", "most"), [(0, 0, 0), (0.5, 350, 650), (1, 1000, 1000)])
def test_the_ratio_is_of_the_traces_that_begin_here(ratio: float, least: int, most: int) -> None:
    sampling = Sampling(exports=True, ratio=ratio)
    begun = [sampling.begins() for _ in range(1000)]
    assert least <= sum(trace.is_sampled for trace in begun) <= most
    assert all(trace.is_exported is trace.is_sampled for trace in begun)
    assert not any(Sampling(ratio=ratio).begins().is_sampled for _ in range(100))


def test_each_message_of_a_socket_has_a_span_of_its_own() -> None:
    sampling = Sampling(exports=True)
    request = asked()
    enter_trace(request, sampling)
    first, second = begin_message(request), begin_message(request)
    assert {first.trace_id, second.trace_id} == {TRACE}
    assert {first.parent_id, second.parent_id} == {SPAN}
    assert first.span_id != second.span_id
    request = scope()
    enter_trace(request, sampling)
    assert begin_message(request).trace_id != begin_message(request).trace_id
