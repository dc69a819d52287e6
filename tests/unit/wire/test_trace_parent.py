"""``traceparent`` and ``tracestate`` are read strictly and written as they were read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.wire.trace_parent import (
    MAX_LATER_CHARS,
    MAX_STATE_CHARS,
    MAX_STATE_MEMBERS,
    TraceContext,
    parse_traceparent,
    parse_tracestate,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"
hexadecimal = "0123456789abcdef"


def test_a_valid_header_is_read_and_written_again() -> None:
    context = parse_traceparent(VALID)
    assert context == TraceContext(TRACE, SPAN, is_sampled=True)
    assert context.traceparent() == VALID
    assert context.traceparent("1" * 16) == f"00-{TRACE}-{'1' * 16}-01"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        VALID.upper(),
        VALID[:-1],
        VALID + "0",
        VALID + "-",
        VALID + "-00",
        VALID + "\n",
        " " + VALID,
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f"00_{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}٣-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01x",
        f"01-{TRACE}-{SPAN}-01-" + "x" * MAX_LATER_CHARS,
    ],
)
def test_what_is_malformed_counts_as_absent(text: str) -> None:
    assert parse_traceparent(text) is None


@pytest.mark.parametrize("rest", ["", "-", "-what-comes-later"])
def test_of_a_later_version_the_known_fields_are_read(rest: str) -> None:
    context = parse_traceparent(f"cc-{TRACE}-{SPAN}-09{rest}")
    assert context == TraceContext(TRACE, SPAN, is_sampled=True)
    assert context.traceparent() == VALID, "and written as the version that is known"


@pytest.mark.parametrize(("flags", "is_sampled"), [("00", False), ("01", True), ("02", False)])
def test_the_lowest_bit_of_the_flags_is_the_samplers(flags: str, is_sampled: bool) -> None:
    context = parse_traceparent(f"00-{TRACE}-{SPAN}-{flags}")
    assert context is not None
    assert context.is_sampled is is_sampled


@given(
    st.text(hexadecimal, min_size=32, max_size=32).filter(lambda text: text.strip("0")),
    st.text(hexadecimal, min_size=16, max_size=16).filter(lambda text: text.strip("0")),
    st.booleans(),
)
def test_what_is_written_is_read_again(trace_id: str, span_id: str, is_sampled: bool) -> None:
    context = TraceContext(trace_id, span_id, is_sampled)
    assert parse_traceparent(context.traceparent()) == context


@given(st.text(max_size=80))
def test_no_text_raises(text: str) -> None:
    parse_traceparent(text)
    parse_tracestate([text])


def test_spans_below_have_ids_of_their_own_and_keep_them() -> None:
    context = TraceContext(TRACE, SPAN)
    names = [f"{key}.{placement}" for key in range(100) for placement in (1, 2)]
    ids = [context.span_below(name) for name in names]
    assert len({*ids, SPAN}) == len(names) + 1
    assert ids == [TraceContext(TRACE, SPAN).span_below(name) for name in names]
    assert all(len(each) == 16 and not each.strip(hexadecimal) for each in ids)


@pytest.mark.parametrize(
    ("headers", "state"),
    [
        ([], ""),
        (["congo=t61rcWkgMzE, rojo=00f067aa0ba902b7 "], "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"),
        (["a=1", "b=2,,c=3"], "a=1,b=2,c=3"),
        (["tenant@vendor=x:y"], "tenant@vendor=x:y"),
        (["a=1,a=2"], ""),
        (["a=1,b"], ""),
        (["A=1"], ""),
        (["a=1\x00"], ""),
        (["a=é"], ""),
        ([",".join(f"k{i}=1" for i in range(MAX_STATE_MEMBERS))],) * 1
        + (",".join(f"k{i}=1" for i in range(MAX_STATE_MEMBERS)),),
        ([",".join(f"k{i}=1" for i in range(MAX_STATE_MEMBERS + 1))], ""),
    ],
)
def test_a_tracestate_is_passed_on_whole_or_not_at_all(headers: list[str], state: str) -> None:
    assert parse_tracestate(headers) == state


def test_a_tracestate_that_is_too_long_loses_its_long_members_then_its_last_ones() -> None:
    long, short = "long=" + "x" * 200, [f"k{i:02}=" + "y" * 36 for i in range(20)]
    state = parse_tracestate([",".join([*short[:10], long])])
    assert state == ",".join(short[:10])
    state = parse_tracestate([",".join(short)])
    assert len(state) <= MAX_STATE_CHARS
    assert state == ",".join(short[: len(state.split(","))])
    assert len(state) + len(short[0]) + 1 > MAX_STATE_CHARS
    assert parse_tracestate(["a=" + "x" * 100_000]) == ""
