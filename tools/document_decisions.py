"""Write the list of ``docs/decisions/index.md`` from the titles of the decisions.

What stands above the marker in that page is written by hand.

.venv/bin/python tools/document_decisions.py          # writes docs/decisions/index.md
.venv/bin/python tools/document_decisions.py --check  # exit code 1 if it would change
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "decisions"
PAGE = FOLDER / "index.md"
MARKER = "<!-- From here on this page is written by tools/document_decisions.py. -->\n"


def page(current: str, folder: Path = FOLDER) -> str:
    """Return the whole of ``index.md``; ``current`` is what it is now."""
    introduction, marker, _ = current.partition(MARKER)
    assert marker, f"{PAGE} has lost its marker: {MARKER}"
    return f"{introduction}{MARKER}\n{list_of_decisions(folder)}"


def list_of_decisions(folder: Path) -> str:
    """Return a table of all decisions of a folder, by their numbers."""
    lines = ["| | decision |", "|---|---|"]
    for path in sorted(folder.glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0]
        number, _, name = title.removeprefix("# ").partition(". ")
        lines.append(f"| {number} | [{name}]({path.name}) |")
    return "\n".join([*lines, ""])


def main() -> int:
    current = PAGE.read_text(encoding="utf-8")
    written = page(current)
    if "--check" in sys.argv[1:]:
        return int(written != current)
    PAGE.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
