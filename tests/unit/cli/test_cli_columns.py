"""Columns keep their places, on terminals of every width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from paddler_trio.cli.live.columns import (
    Column,
    fitting,
    header_line,
    plain_table,
    row_line,
    table,
    text_order,
)

Row = tuple[str, str]
COLUMNS: list[Column[Row]] = [
    Column("name", 6, lambda row: row[0], lambda row: text_order(row[0])),
    Column("note", 5, lambda row: row[1], None, 2, takes_rest=True),
    Column("left", 4, lambda row: "12", None, 1, is_right=True),
]


def test_the_least_important_column_is_left_out_first() -> None:
    assert [column.title for column in fitting(COLUMNS, 30)] == ["name", "note", "left"]
    assert [column.title for column in fitting(COLUMNS, 20)] == ["name", "left"]
    assert [column.title for column in fitting(COLUMNS, 10)] == ["name"]
    assert [column.title for column in fitting(COLUMNS, 3)] == ["name"]


def test_one_column_takes_what_is_left() -> None:
    assert {column.title: column.width for column in fitting(COLUMNS, 40)}["note"] == 24


def test_what_is_too_long_is_cut_and_figures_stand_right() -> None:
    line = row_line(fitting(COLUMNS, 21), ("a name that is long", "x"))
    assert line.plain == "a nam…  x        12  "
    assert header_line(COLUMNS, sorted_by="name").plain == "name▼   note   left  "
    assert "▲" in header_line(COLUMNS, sorted_by="name", reverse=True).plain


def test_foreign_text_moves_no_cursor() -> None:
    line = row_line(COLUMNS, ("\x1b[2J\n", "a\tb")).plain
    assert "\x1b" not in line
    assert "\n" not in line
    assert "a b" in line


@given(st.text(max_size=20), st.text(max_size=20), st.integers(min_value=8, max_value=60))
def test_every_row_is_as_wide_as_the_header(name: str, note: str, width: int) -> None:
    columns = fitting(COLUMNS, width)
    wide = cell_len(header_line(columns).plain)
    assert cell_len(row_line(columns, (name, note)).plain) == wide


def test_in_a_pipe_nothing_is_cut() -> None:
    assert plain_table(COLUMNS, [("a name that is long", "x"), ("b", "")]) == [
        "name                 note  left",
        "a name that is long  x       12",
        "b                            12",
    ]


MODELS: list[Column[Row]] = [
    Column("model", 10, lambda row: row[0], keeps_end=True),
    Column("id", 0, lambda row: row[1], importance=2),
    Column("state", 0, lambda row: "whole", importance=1),
]


def lines(width: int | None) -> list[str]:
    return [line.plain for line in table(MODELS, [("/srv/models/tiny.gguf", "1234")], width)]


def test_a_table_without_a_limit_is_whole() -> None:
    assert lines(None) == [
        "model                  id    state",
        "/srv/models/tiny.gguf  1234  whole",
    ]
    assert lines(34) == lines(None)


def test_a_table_keeps_the_end_of_a_path_and_says_what_it_leaves_out() -> None:
    assert lines(33) == [
        "model                 id    state",
        "…rv/models/tiny.gguf  1234  whole",
    ]
    assert lines(20) == [
        "model          state",
        "…ls/tiny.gguf  whole",
        "not shown: id; see --wide",
    ]
    assert lines(12)[0] == "model"


@given(st.text(max_size=30), st.text(max_size=30), st.integers(min_value=10, max_value=60))
def test_no_line_of_a_table_is_wider_than_the_terminal(path: str, name: str, width: int) -> None:
    shown = table(MODELS, [(path, name)], width)
    assert all(cell_len(line.plain) <= width for line in shown[:2])
