"""Pieces of the page: tables and figures, as HTML. Pure; foreign text is escaped here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

import attrs

# lone surrogates too, which JSON can name and no file can be written with
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160), *range(0xD800, 0xE000)), "�")


def text(words: str) -> str:
    """Foreign text, with nothing in it that is markup or invisible control."""
    return escape(words.translate(_CONTROLS))


@attrs.frozen
class Row:
    """Cells as text. ``style`` is a class of the page's style."""

    cells: tuple[str, ...]
    style: str = ""


@attrs.frozen(kw_only=True)
class DataTable:
    """``caption`` is for screen readers; the first ``num_words`` columns hold words."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    num_words: int = 1

    def html(self) -> str:
        lines = [
            _scrollable("wide", self.caption) + "<table>",
            f'<caption class="muted word">{text(self.caption)}</caption>',
            "<thead><tr>",
            *(
                f'<th scope="col"{self._word(place)}>{text(name)}</th>'
                for place, name in enumerate(self.head)
            ),
            "</tr></thead><tbody>",
            *(part for row in self.rows for part in self._row(row)),
            "</tbody></table></div>",
        ]
        return "\n".join(lines)

    def _row(self, row: Row) -> Iterator[str]:
        yield f'<tr class="{row.style}">' if row.style else "<tr>"
        for place, cell in enumerate(row.cells):
            if place == 0:
                yield f'<th scope="row" class="word">{text(cell)}</th>'
            else:
                yield f"<td{self._word(place)}>{text(cell)}</td>"
        yield "</tr>"

    def _word(self, place: int) -> str:
        return ' class="word"' if place < self.num_words else ""


@attrs.frozen(kw_only=True)
class PlotFigure:
    """A plot and its table next to each other.

    Args:
      legend: classes of a key, and what the key stands for.
      svg: empty where there is nothing to draw.
    """

    title: str
    caption: str
    table: DataTable
    legend: Sequence[tuple[str, str]] = ()
    svg: str = ""

    def html(self) -> str:
        keys = (
            f'<li><span class="key {escape(style)}"></span>{text(words)}</li>'
            for style, words in self.legend
        )
        plot = ""
        if self.svg:
            legend = f'<ul class="legend">{"".join(keys)}</ul>'
            plot = f"<div>{legend}{_scrollable('plot', self.title)}{self.svg}</div></div>"
        return (
            f'<section class="card"><h3>{text(self.title)}</h3><figure>'
            f"<figcaption>{text(self.caption)}</figcaption>{plot}{self.table.html()}"
            "</figure></section>"
        )


def _scrollable(style: str, label: str) -> str:
    """The beginning of a part that may be wider than a small window: the keyboard reaches it."""
    return f'<div class="{style}" tabindex="0" role="group" aria-label="{text(label)}">'


NOTHING: Final = "\N{EN DASH}"
"""It stands for what nobody told."""


def milliseconds(seconds: float | None) -> str:
    """Three digits, or all before the point: ``3.21``, ``32.1``, ``321``, ``3,210``."""
    return NOTHING if seconds is None else number(seconds * 1000)


def number(value: float | None) -> str:
    """Return a figure of any other kind in words."""
    if value is None:
        return NOTHING
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def times(value: float | None) -> str:
    """A ratio: ``0.98x``."""
    return NOTHING if value is None else f"{value:.2f}x"


def share(value: float | None) -> str:
    """0..1 in hundredths."""
    return NOTHING if value is None else f"{value:.0%}"


def seconds_words(seconds: float) -> str:
    """``0.5 s``, ``42 s``, ``10 min``, ``2.5 h``."""
    if seconds < 120:
        return f"{seconds:g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
