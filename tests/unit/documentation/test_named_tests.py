"""Tests that a page names exist: a row of a promise is never held by nothing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?")


def functions_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


def test_every_test_that_a_page_names_exists() -> None:
    named = {
        (page.relative_to(ROOT), *found)
        for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
        for found in NAMED.findall(page.read_text())
    }
    assert len(named) >= 60
    known = {file: functions_in(ROOT / file) for _, file, _ in named if (ROOT / file).is_file()}
    missing = [
        f"{page}: {file}::{name}"
        for page, file, name in sorted(named)
        if file not in known or (name and name not in known[file])
    ]
    assert not missing, missing
