"""An error that says what is wrong with a JSON value, and where."""

from __future__ import annotations

import re

from paddler_trio.errors import WireError

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ShapeError(WireError):
    """A JSON value is not what its place calls for; ``path`` is the place, innermost step first."""

    def __init__(self, text: str, *path: str | int) -> None:
        super().__init__(text)
        self.text = text
        self.path: list[str | int] = list(path)

    def __str__(self) -> str:
        return f"{self.text} @ ${''.join(_step(part) for part in reversed(self.path))}"


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if _IDENTIFIER.fullmatch(part) else f"[{part[:80]!r}]"
