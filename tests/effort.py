"""How much is tried where more can always be tried."""

from __future__ import annotations

from hypothesis import settings

USUAL = 100
"""Hypothesis's own number of examples."""


def examples(usual: int) -> int:
    """So many tries; in proportion fewer or more under another of Hypothesis's profiles.

    ``pytest --hypothesis-profile=quick`` is for a look between two edits; see conftest.py.
    """
    return max(1, usual * settings.default.max_examples // USUAL)
