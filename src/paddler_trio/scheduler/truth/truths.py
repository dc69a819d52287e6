"""The one shape of everything that is said of a state, for the panel, the terminal and programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import attrs

Severity: TypeAlias = Literal["ok", "info", "quiet", "warn", "bad"]
"""``info``: under way; ``quiet``: so on somebody's wish; ``warn``: somebody should look; ``bad``:
clients are hurt, or will be."""
SEVERITIES: Final[tuple[Severity, ...]] = ("ok", "info", "quiet", "warn", "bad")


@attrs.frozen(kw_only=True)
class Truth:
    """A sentence about one thing, and what goes with it.

    Args:
      state: for programs: one of few names.
      word: for a badge or a column.
      sentence: what is so, as a sentence without a full stop; empty if the word says it all.
      follows: what clients notice of it; empty for nothing.
      todo: what an operator can do about it; empty for nothing.
    """

    state: str
    word: str
    severity: Severity
    sentence: str = ""
    follows: str = ""
    todo: str = ""

    def view(self) -> Mapping[str, str]:
        """Return it as JSON."""
        return attrs.asdict(self)


def plural(count: int, noun: str) -> str:
    """Return ``1 agent`` or ``2 agents``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def span(seconds: float) -> str:
    """Return a time in words that need no more precision than a person does."""
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 48 * 60 else f"{minutes / 1440:.0f} days"
