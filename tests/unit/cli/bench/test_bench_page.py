"""The page: what stands in it, that foreign text stays text, and that every plot is well-formed."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench_reports import PLAN, TARGETS, report, results
from paddler_trio.cli.bench.report.page_parts import (
    milliseconds,
    number,
    seconds_words,
    share,
    times,
)
from paddler_trio.cli.bench.report.report import TargetShown, report_of
from paddler_trio.cli.bench.report.report_html import notes_of, report_html
from paddler_trio.cli.bench.report.report_plots import MAX_POINTS, distribution, spread, step_of
from paddler_trio.cli.bench.report.svg_plot import (
    HEIGHT,
    MAX_TICKS,
    WIDTH,
    Mark,
    Series,
    level_axis,
    line_plot,
    share_axis,
    value_axis,
)

DASH = "\N{EN DASH}"
VALUES = st.lists(
    st.floats(min_value=0, max_value=1e9, allow_subnormal=False), min_size=1, max_size=9
)
OPEN = {"meta", "link", "br"}


class Outline(HTMLParser):
    """Elements that are open, and the text of the page; an end tag without its beginning fails."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.counts: dict[str, int] = {}
        self.words: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.links += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag not in OPEN:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack[-1:] not in (["style"], []):
            self.words.append(data)


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    assert found.stack == []
    return found


def test_the_page_is_whole_and_fetches_nothing() -> None:
    page = report_html(report())
    found = outline(page)
    assert found.links == []
    assert "script" not in found.counts
    assert "url(" not in page
    assert found.counts["svg"] == 5
    assert found.counts["table"] == 6, "one beside each plot, and all counts"


def test_every_plot_has_its_numbers_in_a_table_beside_it() -> None:
    page = report_html(report())
    for figure in re.findall(r"<figure>(.*?)</figure>", page, re.S):
        assert "<table>" in figure
        svg = re.search(r"<svg.*?</svg>", figure, re.S)
        assert svg is not None
        drawing = ElementTree.fromstring(svg[0])
        title = drawing.find("title")
        assert title is not None
        assert drawing.get("aria-labelledby") == title.get("id")
    identities = re.findall(r'<title id="([^"]+)"', page)
    assert len(set(identities)) == len(identities) == 5


def test_names_and_errors_of_others_are_text_and_nothing_else() -> None:
    evil = TargetShown("<script>x</script>", 'http://a"b', "\x1b[31m&amp;")
    shown = attrs.evolve(report(), targets=(evil, TARGETS[1]))
    found = outline(report_html(shown))
    assert "script" not in found.counts
    assert "slot" not in found.counts
    words = "".join(found.words)
    assert "<script>x</script>" in words
    assert "\N{REPLACEMENT CHARACTER}[31m&amp;" in words
    assert "\x1b" not in words


def test_half_a_surrogate_pair_of_a_server_can_be_written() -> None:
    target = TargetShown("ours", "http://127.0.0.1:1", "model \ud800")
    words = [attrs.evolve(each, text="no \udfff") for each in report().errors]
    shown = attrs.evolve(report(), targets=(target, TARGETS[1]), errors=tuple(words))
    page = report_html(shown).encode().decode()
    assert "model \N{REPLACEMENT CHARACTER}" in page
    assert "no \N{REPLACEMENT CHARACTER}" in page


def test_one_server_has_no_ratio_and_one_concurrency_no_line() -> None:
    plan = attrs.evolve(PLAN, num_targets=1, concurrencies=(1,))
    runs = [each for each in results() if (each.run.target, each.run.concurrency) == (0, 1)]
    page = report_html(report_of(plan, TARGETS[:1], runs, started="", version=""))
    found = outline(page)
    assert "first / second" not in page
    assert found.counts["svg"] == 1, "the distribution"


def test_a_test_without_any_answer_is_a_page_too() -> None:
    empty = report_of(PLAN, TARGETS, [], started="", version="", stopped="interrupted")
    assert "Not all runs were done: interrupted." in "".join(outline(report_html(empty)).words)


def test_what_a_reader_must_know_comes_first() -> None:
    runs = results()
    for run in runs:
        run.client_cpu_s = 0.8
    found = list(
        notes_of(
            attrs.evolve(
                report_of(PLAN, TARGETS, runs, started="", version="", stopped="interrupted"),
                unmet=("ttft_p95>1ms: 2 ms",),
            )
        )
    )
    assert [each[:30] for each in found] == [
        "Not all runs were done: interr",
        "ours: 2 requests failed (statu",
        "<b>other</b>: 2 requests faile",
        "The load test itself needed up",
        "--fail-if ttft_p95>1ms: 2 ms",
    ]


# ------------------------------------------------------------------------------------- axes


@given(VALUES, st.booleans())
def test_all_values_are_on_the_axis_in_their_order(values: list[float], may_be_log: bool) -> None:
    axis = value_axis("ms", values, may_be_log=may_be_log)
    assert axis.low <= max(min(values), max(values) / 1e5) * (1 + 1e-6)
    assert max(values) <= axis.high * (1 + 1e-9)
    places = [axis.place(value) for value in sorted(values)]
    assert all(0 <= place <= 1 for place in places)
    assert places == sorted(places)


@given(VALUES, st.booleans())
def test_an_axis_has_a_few_numbers_that_differ_from_one_end_to_the_other(
    values: list[float], may_be_log: bool
) -> None:
    axis = value_axis("ms", values, may_be_log=may_be_log)
    ticks = [tick.value for tick in axis.ticks]
    assert ticks[0] == pytest.approx(axis.low)
    assert ticks[-1] == pytest.approx(axis.high)
    assert all(low < high for low, high in pairwise(ticks))
    assert len({tick.label for tick in axis.ticks}) == len(ticks)
    if not axis.is_log:
        assert 2 <= len(ticks) <= MAX_TICKS + 1


def test_axes_have_round_numbers() -> None:
    assert [tick.label for tick in value_axis("ms", [37]).ticks] == [
        "0", "10", "20", "30", "40",
    ]  # fmt: skip
    assert [tick.label for tick in value_axis("ms", [12, 900]).ticks] == [
        "10", "20", "50", "100", "200", "500", "1,000",
    ]  # fmt: skip
    assert value_axis("ms", [0, 900]).low == 0, "there is no logarithm of nothing"
    assert [tick.label for tick in level_axis("clients", [4, 1, 2]).ticks] == ["1", "2", "4"]
    assert level_axis("clients", [1, 2, 4]).place(2) == pytest.approx(0.5)
    assert share_axis("requests").ticks[-1].label == "100 %"


@given(st.integers(1, 900).map(lambda count: [(n * 37) % 101 / 10 for n in range(count)]))
def test_a_distribution_rises_from_nothing_to_all_in_few_points(values: list[float]) -> None:
    marks = list(distribution(sorted(values)))
    assert len(marks) <= MAX_POINTS + 1
    assert (marks[0].y, marks[-1].y) == (0.0, 1.0)
    assert marks[-1].x == max(values) * 1000
    for before, after in pairwise(marks):
        assert before.x <= after.x
        assert before.y < after.y
    for mark in marks[1:]:
        no_larger = sum(value * 1000 <= mark.x for value in values) / len(values)
        assert mark.y <= no_larger + 1e-9


@given(st.lists(st.integers(1, 1000), min_size=1, unique=True).map(sorted), st.integers(2, 6))
def test_of_many_concurrencies_some_are_drawn_with_the_first_and_the_last(
    levels: list[int], count: int
) -> None:
    found = spread(levels, count)
    assert len(found) == min(count, len(levels))
    assert (found[0], found[-1]) == (levels[0], levels[-1])
    assert found == sorted(set(found))


def test_lines_get_darker() -> None:
    assert [step_of(place, 5) for place in range(5)] == [1, 2, 3, 4, 5]
    assert [step_of(place, 2) for place in range(2)] == [1, 5]
    assert step_of(0, 1) == 5


@example([(1.0, 5e-324)])
@given(st.lists(st.tuples(st.floats(1, 64), st.floats(0, 1e6)), min_size=1, max_size=8))
def test_everything_that_is_drawn_is_inside_the_picture(points: list[tuple[float, float]]) -> None:
    marks = tuple(Mark(x, y, "a & b", y / 2, y) for x, y in sorted(points))
    axis = value_axis("ms", [y for _, y in points])
    series = [Series(style="one", marks=marks, end_label=f"p{n}") for n in range(3)]
    svg = line_plot(series, level_axis("x", [1, 64]), axis, identity="i", summary="<all>")
    drawing = ElementTree.fromstring(svg)
    for circle in drawing.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= WIDTH
        assert 0 <= float(circle.attrib["cy"]) <= HEIGHT
    ends = sorted(
        float(each.attrib["y"]) for each in drawing.iter("text") if (each.text or "")[0] == "p"
    )
    assert all(after - before >= 13.9 for before, after in pairwise(ends))
    assert ends[-1] <= HEIGHT


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, DASH),
        (0, "0.00"),
        (0.003214, "3.21"),
        (0.00999, "9.99"),
        (0.009996, "10.0"),
        (0.0321, "32.1"),
        (0.0999, "99.9"),
        (0.09996, "100"),
        (3.21, "3,210"),
    ],
)
def test_times_have_three_digits(seconds: float | None, text: str) -> None:
    assert milliseconds(seconds) == text


def test_other_figures_are_short_too() -> None:
    assert (number(None), number(12345.6), number(3)) == (DASH, "12,346", "3.00")
    assert (times(None), times(2 / 3)) == (DASH, "0.67x")
    assert (share(None), share(0.256)) == (DASH, "26%")
    assert [seconds_words(each) for each in (0.5, 42, 600, 9000)] == [
        "0.5 s", "42 s", "10 min", "2.5 h",
    ]  # fmt: skip
