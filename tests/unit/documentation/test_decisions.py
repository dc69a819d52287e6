"""The list of decisions has every one of them, under the number in its name."""

from __future__ import annotations

import sys
from pathlib import Path

from documented_blocks import DOCS, ROOT

sys.path.insert(0, str(ROOT / "tools"))

from document_decisions import PAGE, list_of_decisions, page


def test_the_committed_list_of_decisions_is_current() -> None:
    current = PAGE.read_text(encoding="utf-8")
    assert page(current) == current, "run tools/document_decisions.py"


def test_every_decision_is_in_the_list_under_its_number() -> None:
    lines = list_of_decisions(DOCS / "decisions").splitlines()[2:]
    files = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    assert len(lines) == len(files)
    for line, path in zip(lines, files, strict=True):
        assert line.startswith(f"| {int(path.name[:4])} | [")
        assert path.name in line


def test_a_new_decision_changes_the_page(tmp_path: Path) -> None:
    (tmp_path / "0007-later.md").write_text("# 7. Later\n\ntext\n")
    assert page(PAGE.read_text(encoding="utf-8"), tmp_path).endswith(
        "| 7 | [Later](0007-later.md) |\n"
    )
