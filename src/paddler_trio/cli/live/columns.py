"""Tables whose columns keep their places: each has a width of its own, and rows become lines.

On a narrow terminal the least important columns are left out; one column may take what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

import attrs
from rich.cells import set_cell_size
from rich.text import Text

from paddler_trio.cli.terminal import printable

T = TypeVar("T")
Order: TypeAlias = tuple[int, float, str]
"""What rows are sorted by: what is not known comes last."""
GAP: Final = 2
UNKNOWN: Final[Order] = (1, 0.0, "")


def number_order(number: float | None) -> Order:
    """Largest first."""
    return UNKNOWN if number is None else (0, -number, "")


def text_order(text: str) -> Order:
    return (0, 0.0, text.casefold()) if text else UNKNOWN


@attrs.frozen
class Column(Generic[T]):
    """One column.

    Args:
      text: the cell of a row.
      order: what rows are sorted by; None for a column that is no order.
      importance: 0 always stays; the largest is left out first.
      takes_rest: it gets what the others leave, and at least ``width``.
    """

    title: str
    width: int
    text: Callable[[T], str]
    order: Callable[[T], Order] | None = None
    importance: int = 0
    is_right: bool = False
    takes_rest: bool = False
    style: Callable[[T], str] = lambda row: ""


def fitting(columns: Sequence[Column[T]], width: int) -> list[Column[T]]:
    """The columns that there is room for, the last of them as wide as the room."""
    kept = list(columns)
    while _width_of(kept) > width:
        least = max(kept, key=lambda column: column.importance)
        if least.importance == 0:
            break
        kept.remove(least)
    left = max(0, width - _width_of(kept))
    return [
        attrs.evolve(column, width=column.width + left) if column.takes_rest else column
        for column in kept
    ]


def header_line(
    columns: Sequence[Column[T]], *, sorted_by: str = "", reverse: bool = False
) -> Text:
    """The titles; the one that rows are sorted by is marked."""
    mark = "▲" if reverse else "▼"
    line = Text(no_wrap=True, overflow="crop", style="bold")
    for column in columns:
        is_key = column.title == sorted_by
        title = f"{column.title}{mark}" if is_key else column.title
        line.append(_cell(title, column), style="reverse" if is_key else "")
    return line


def row_line(columns: Sequence[Column[T]], row: T, *, is_selected: bool = False) -> Text:
    """One row; control characters of foreign text never reach the terminal."""
    line = Text(no_wrap=True, overflow="crop", style="reverse" if is_selected else "")
    for column in columns:
        text = printable(column.text(row)).replace("\n", " ").replace("\t", " ")
        line.append(_cell(text, column), style="" if is_selected else column.style(row))
    return line


def plain_table(columns: Sequence[Column[T]], rows: Iterable[T]) -> list[str]:
    """Lines in which no cell is cut, for pipes and for one look."""
    cells = [[column.title for column in columns]]
    cells += [
        [printable(column.text(row)).replace("\n", " ") for column in columns] for row in rows
    ]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    lines = []
    for line in cells:
        padded = (
            cell.rjust(width) if column.is_right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        )
        lines.append((" " * GAP).join(padded).rstrip())
    return lines


def _width_of(columns: Sequence[Column[T]]) -> int:
    return sum(column.width + GAP for column in columns)


def _cell(text: str, column: Column[T]) -> str:
    """Cut or padded to the column's width, wide characters counted as the terminal shows them."""
    fitted = text
    if len(text) > column.width:
        fitted = set_cell_size(text, max(0, column.width - 1)) + "…"
    if column.is_right:
        fitted = fitted.rjust(column.width)
    return set_cell_size(fitted, column.width) + " " * GAP
