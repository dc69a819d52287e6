"""A request's stages and its waterfall, from what the balancer recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_documents import CONTINUED, NOW_MS, STREAMING, TIME, Json, placement, request
from paddler_trio.cli.live.explain_text import speeds_of, stages, waterfall
from paddler_trio.cli.live.live_picture import read_view
from paddler_trio.cli.live.request_views import RequestDetail, RequestView


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def view(document: Json) -> RequestView:
    return read_view(document, RequestView)


def explained(document: Json, *sentences: str, width: int = 130) -> list[str]:
    detail = {"now_ms": NOW_MS, "time": TIME, "request": document, "explanation": [*sentences]}
    return waterfall(read_view(detail, RequestDetail), width=width)


def names(document: Json) -> list[str]:
    return [stage.name for stage in stages(view(document), NOW_MS)]


def test_the_stages_of_a_request_are_those_it_went_through() -> None:
    found = {stage.name: stage for stage in stages(view(STREAMING), NOW_MS)}
    arrived_ms = NOW_MS - 3000
    times = {
        name: (stage.since_ms - arrived_ms, stage.until_ms and stage.until_ms - arrived_ms)
        for name, stage in found.items()
    }
    assert times == {
        "queue": (0, 500),
        "a1, slot 1": (500, 3000),
        "template": (500, 504),
        "engine's queue": (510, 600),
        "prefill": (600, 1000),
        "first result": (1000, None),
        "decode": (1000, 3000),
    }
    assert found["queue"].note == "3 → 1 ahead of it"
    assert found["prefill"].note == "1000 prompt tokens, 750 of them cached (75%)"
    assert found["decode"].note == "101 tokens, 50 a second  ▆█"


def test_a_request_that_went_on_elsewhere_has_both_agents_and_why() -> None:
    assert names(CONTINUED) == [
        "a1, slot 1", "preparation", "prefill", "first result", "decode", "ending",
        "queue", "a2, slot 0", "preparation", "prefill", "first result", "decode", "ending",
    ]  # fmt: skip
    found = stages(view(CONTINUED), NOW_MS)
    assert [stage.note for stage in found if stage.name == "decode"] == [
        "61 tokens, 30 a second  ██",
        "29 tokens, 14 a second",
    ]
    assert [stage.note for stage in found if stage.name == "ending"] == [
        "lost: the connection was reset",
        "failed",
    ]


def test_what_goes_on_still_ends_now() -> None:
    waiting = request(19)
    (queue,) = stages(view(waiting), NOW_MS)
    assert (queue.since_ms, queue.until_ms) == (NOW_MS - 3000, NOW_MS)
    read = request(19, queue=[], placements=[placement("a1", NOW_MS - 9, prepared_ms=NOW_MS - 5)])
    assert names(read) == ["a1, slot 1", "preparation", "prefill"]
    handed = placement("a1", NOW_MS - 9, ended_ms=NOW_MS - 5, ending="handed back: it is busy")
    assert names(request(19, queue=[], placements=[handed])) == ["a1, slot 1", "ending"]


def test_many_positions_are_shortened() -> None:
    positions = [[n, 40 - n] for n in range(30)]
    stay = {"since_ms": 0, "until_ms": 30, "positions": positions}
    (queue,) = stages(view(request(19, queue=[stay])), NOW_MS)
    assert queue.note == "40 → 39 → 38 → 37 → 36 → 35 → … → 11 ahead of it"


def test_the_waterfall_has_everything_in_its_place() -> None:
    lines = explained(STREAMING, "It waited because all slots were busy.")
    assert lines[0] == "request 17  chatcmpl-17"
    assert lines[1] == "client app, deployment default, /v1/chat/completions"
    assert lines[2] == (
        "arrived 11:59:57.000, streaming after 3.00 s, first result after 1.00 s, 101 tokens, "
        "50 tokens/s"
    )
    (queue,) = (line for line in lines if line.startswith("queue"))
    assert queue.split()[:6] == ["queue", "0", "ms", "500", "ms", "░" * 7]
    (decode,) = (line for line in lines if line.startswith("  decode"))
    assert decode.split()[:5] == ["decode", "1.00", "s", "2.00", "s"]
    assert decode.index("█") == next(line for line in lines if "first result  " in line).index("│")
    assert lines[-1] == "It waited because all slots were busy."


def test_the_trace_is_named_where_there_is_one() -> None:
    assert explained(request(17, trace="4" * 32))[3] == "trace " + "4" * 32
    assert not any(line.startswith("trace") for line in explained(request(17)))


def test_an_ending_says_what_the_client_got() -> None:
    lines = explained(CONTINUED)
    assert lines[0] == "request 9  chatcmpl-9"
    assert "continued once on another agent" in lines[2]
    assert lines[-1].split() == [
        "end",
        "6.00",
        "s",
        "failed",
        "504:",
        "no",
        "result",
        "within",
        "30",
        "s",
    ]


def test_what_was_captured_is_shown_without_its_control_characters() -> None:
    capture = {"request": "Hello\x1b[2J", "answer": "Hi"}
    lines = explained({**STREAMING, "capture": capture})
    assert "  Hello\ufffd[2J" in lines
    assert lines[-1] == "  Hi"


def test_a_request_without_any_stage_says_so() -> None:
    assert "nothing is known of its stages" in explained(request(19, queue=[]))


def test_a_day_that_is_not_today_is_named() -> None:
    old = request(3, arrived_ms=NOW_MS - 86_400_000)
    assert "arrived 2026-02-28 12:00:00.000" in explained(old)[2]


def test_speeds_skip_points_at_the_same_time() -> None:
    assert speeds_of([[0, 1], [0, 5], [1000, 25], [1000, 26], [3000, 46]]) == [20.0, 10.0]


moments = st.integers(min_value=-5000, max_value=5000).map(lambda ms: NOW_MS + ms)
maybe = st.none() | moments


@given(
    arrived_ms=moments,
    at_ms=moments,
    prepared_ms=maybe,
    first_ms=maybe,
    ended_ms=maybe,
    prefill_ms=st.none() | st.floats(min_value=0, max_value=1e5),
    width=st.integers(min_value=1, max_value=300),
)
def test_no_times_however_odd_break_the_waterfall(
    arrived_ms: int,
    at_ms: int,
    prepared_ms: int | None,
    first_ms: int | None,
    ended_ms: int | None,
    prefill_ms: float | None,
    width: int,
) -> None:
    stay = placement(
        "a1",
        at_ms,
        prepared_ms=prepared_ms,
        first_ms=first_ms,
        ended_ms=ended_ms,
        prefill_ms=prefill_ms,
        wait_ms=prefill_ms,
        template_ms=prefill_ms,
    )
    lines = explained(
        request(1, arrived_ms=arrived_ms, placements=[stay], ended_ms=ended_ms), width=width
    )
    assert any(line.startswith("a1, slot 1") for line in lines)
