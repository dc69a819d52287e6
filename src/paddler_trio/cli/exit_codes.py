"""The exit codes of commands, and what they say."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
"""The command line, or a file that it names, is wrong; typer ends so too."""
ROLLED_BACK: Final = 3
TIMED_OUT: Final = 4
REFUSED: Final = 5
"""By the balancer, of what ``fleet`` and ``rollout`` ask."""


CANNOT_SAY: Final = 2
