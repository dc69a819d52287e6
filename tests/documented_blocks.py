"""The fenced blocks of the documentation: which of them run, where, and why others do not.

The first line of a block of commands may say more than its language:

* ``sh on=gpu-1``: it is meant for that machine; what runs it gives each a home of its own;
* ``sh no-run=needs-root``: it does not run in tests, for one of ``REASONS``.

Commands that a reader needs not see stand in a comment that begins with ``<!-- run``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

REASONS = {
    "builds": "compiles llama.cpp, or sets up an environment",
    "needs-root": "changes the machine",
    "needs-docker": "needs a container engine",
    "needs-another-machine": "needs hardware or a service that is elsewhere",
    "needs-a-gpu": "needs a GPU",
    "needs-the-internet": "fetches something",
    "needs-another-program": "is for a program that comes from elsewhere",
    "overview": "shows commands side by side; the guides run them",
    "for-people": "waits for a person, or never ends",
}
"""Why a block does not run."""

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<text>.*?)^(?P=indent)``` *$"
    r"|^<!-- run(?P<words>[^\n]*)\n(?P<hidden>.*?)^-->$",
    re.M | re.S,
)


@attrs.frozen
class Block:
    """A block as it stands on a page.

    Args:
      line: of its first command, from 1.
      machine: where it is meant to run; empty where that does not matter.
      reason: why it does not run; empty if it does.
    """

    page: Path
    line: int
    language: str
    text: str
    machine: str = ""
    reason: str = ""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_commands(self) -> bool:
        return self.language == "sh"

    @property
    def typed(self) -> str:
        """What of it is for a shell: all, or in a session the lines behind ``$``."""
        if self.is_commands:
            return self.text
        lines = re.findall(r"^\$ (.*(?:\\\n.*)*)", self.text, re.M)
        return "".join(f"{line}\n" for line in lines)


def pages() -> list[Path]:
    """README and every page of the documentation."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page in order; ValueError for a first line that says something unknown."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        if found["hidden"] is not None:
            language, words, inside = "sh", found["words"].split(), found["hidden"]
        else:
            language, *words = found["info"].split() or [""]
            indent = len(found["indent"])
            inside = "".join(each[indent:] for each in found["text"].splitlines(keepends=True))
        named = dict(word.partition("=")[::2] for word in words)
        machine, reason = named.pop("on", ""), named.pop("no-run", "")
        if named or (reason and reason not in REASONS):
            raise ValueError(
                f"{page}:{line - 1}: a block may have on=NAME and no-run=REASON, with a reason of "
                f"{', '.join(REASONS)}; it has {' '.join(words)}"
            )
        yield Block(page, line, language, inside, machine, reason)
