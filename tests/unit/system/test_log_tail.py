"""The lines of a log that are kept for operators: bounded, in order, and without secrets."""

from __future__ import annotations

import structlog
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.cli.live.logs_command import MOST_LINES
from paddler_trio.system.logs.log_ring import MAX_BYTES, MAX_LINES, LogTail
from paddler_trio.wire.codec import dumps, loads
from paddler_trio.wire.trio.operations.operator_orders import (
    MAX_LINE_CHARS,
    MAX_LOG_BYTES,
    MAX_LOG_LINES,
    LogPage,
    read_page,
)


def texts(page: LogPage) -> list[str]:
    return [line.text for line in page.lines]


def filled(count: int, size: int = 1) -> LogTail:
    tail = LogTail()
    for number in range(1, count + 1):
        tail.add("info", str(number).ljust(size, "."))
    return tail


def test_the_last_lines_and_those_behind_a_number() -> None:
    tail = filled(10)
    assert texts(tail.page(after=None, lines=3)) == ["8", "9", "10"]
    page = tail.page(after=4, lines=3)
    assert (texts(page), page.last, page.missed) == (["5", "6", "7"], 7, 0)
    assert tail.page(after=10, lines=3) == LogPage(last=10)
    assert LogTail().page(after=None, lines=3) == LogPage()


def test_number_and_size_are_bounded_and_what_is_missing_is_counted() -> None:
    tail = filled(MAX_LINES + 500)
    page = tail.page(after=100, lines=1)
    assert (page.missed, texts(page)) == (400, ["501"])
    large = filled(3000, MAX_LINE_CHARS)
    kept = large.page(after=0, lines=MAX_LOG_LINES)
    assert large.last - kept.missed <= MAX_BYTES // MAX_LINE_CHARS
    assert sum(map(len, texts(kept))) <= MAX_LOG_BYTES
    newest = large.page(after=None, lines=MAX_LOG_LINES)
    assert newest.lines[-1].n == 3000
    assert sum(map(len, texts(newest))) <= MAX_LOG_BYTES


def test_a_line_hides_secrets_and_cannot_be_two() -> None:
    tail = LogTail()
    tail.add(
        "warning", "Bearer pt-abcdefghijklmnopqrstuvwxyz\nlevel=error \x1b[31mred" + "x" * 9999
    )
    (line,) = tail.page(after=None, lines=1).lines
    assert "abcdefghij" not in line.text
    assert "(hidden)" in line.text
    assert "\n" not in line.text
    assert "\x1b" not in line.text
    assert len(line.text) <= MAX_LINE_CHARS


def test_records_are_kept_only_in_an_agent() -> None:
    tail = LogTail()
    record: structlog.typing.EventDict = {"event": "joined", "level": "info", "token": "s3cr3t"}
    assert tail(None, "", record) is record
    assert tail.last == 0
    tail.life = "one"
    try:
        raise ValueError("too large")
    except ValueError:
        tail(None, "", {**record, "agent": "a1", "exc_info": True})
    (line,) = tail.page(after=None, lines=1).lines
    assert line.text == "joined token=(hidden) agent=a1 exception=ValueError: too large"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
LINE = st.dictionaries(st.sampled_from(["n", "time", "level", "text"]), JSON)
PAGE = st.fixed_dictionaries(
    {}, optional={"lines": st.lists(LINE | JSON), "last": JSON, "missed": JSON, "life": JSON}
)


@given(PAGE | JSON)
def test_any_json_gives_a_page_that_can_be_shown(raw: object) -> None:
    page = read_page(raw)
    assert all(line.text.isprintable() and line.time.isprintable() for line in page.lines)
    assert page.last >= 0


def test_as_many_lines_may_be_asked_for_as_one_answer_has() -> None:
    assert MOST_LINES == MAX_LOG_LINES


def test_a_page_of_a_stranger_is_cut() -> None:
    line = {"n": 1, "time": "t", "level": "fatal", "text": "x" * 5000}
    page = read_page(loads(dumps({"lines": [line] * 5000, "last": 5000})))
    assert len(page.lines) <= MAX_LOG_LINES
    assert sum(map(len, texts(page))) <= MAX_LOG_BYTES
    assert {line.level for line in page.lines} == {"info"}
