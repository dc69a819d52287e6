"""Tables whose columns keep their places: each has a width of its own, and rows become lines.

On a narrow terminal the least important columns are left out; one column may take what is left.
`table` is for one look: columns are as wide as their cells, and a last line names what is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

import attrs
from rich.cells import cell_len, set_cell_size
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
      keeps_end: of a text that is too long the end is shown, as of a path.
    """

    title: str
    width: int
    text: Callable[[T], str]
    order: Callable[[T], Order] | None = None
    importance: int = 0
    is_right: bool = False
    takes_rest: bool = False
    keeps_end: bool = False
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
        line.append(
            _cell(_one_line(column.text(row)), column),
            style="" if is_selected else column.style(row),
        )
    return line


def table(columns: Sequence[Column[T]], rows: Sequence[T], width: int | None) -> list[Text]:
    """Return lines for `width` columns; without a limit nothing is left out or cut.

    A column is cut to its own `width` at the least, and not at all if that is 0.
    """
    needed = {
        column.title: max(cell_len(text) for text in (column.title, *_cells(column, rows)))
        for column in columns
    }
    sized = [
        attrs.evolve(each, width=min(each.width or needed[each.title], needed[each.title]))
        for each in columns
    ]
    if width is None:
        kept = [attrs.evolve(each, width=needed[each.title]) for each in sized]
    else:
        kept = fitting([attrs.evolve(each, takes_rest=False) for each in sized], width + GAP)
        left = width + GAP - _width_of(kept)
        for each in sorted(kept, key=lambda column: column.importance):
            more = min(left, needed[each.title] - each.width)
            if more > 0:
                kept[kept.index(each)] = attrs.evolve(each, width=each.width + more)
                left -= more
    lines = [header_line(kept), *(row_line(kept, row) for row in rows)]
    for line in lines:
        line.rstrip()
    titles = {column.title for column in kept}
    hidden = [column.title for column in columns if column.title not in titles]
    if hidden:
        lines.append(Text(f"not shown: {', '.join(hidden)}; see --wide", style="dim"))
    return lines


def _cells(column: Column[T], rows: Iterable[T]) -> Iterable[str]:
    return (_one_line(column.text(row)) for row in rows)


def _one_line(text: str) -> str:
    return printable(text).replace("\n", " ").replace("\t", " ")


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
    if cell_len(text) > column.width:
        room = max(0, column.width - 1)
        fitted = f"…{_end(text, room)}" if column.keeps_end else f"{set_cell_size(text, room)}…"
    if column.is_right:
        fitted = fitted.rjust(column.width)
    return set_cell_size(fitted, column.width) + " " * GAP


def _end(text: str, room: int) -> str:
    """Return the longest end of a text for which there is room."""
    end = text[-room:] if room else ""
    while cell_len(end) > room:
        end = end[1:]
    return end
