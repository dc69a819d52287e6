"""Figures as they are shown, on the terminal and on the page. Pure."""

from __future__ import annotations

from typing import Final

NOTHING: Final = "\N{EN DASH}"
"""What nobody told."""


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
