"""Docstrings stand alone: none begins as the end of a sentence that is nowhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "src" / "paddler_trio"
ROOMS = (
    *("agent", "balancer", "cli", "models", "net", "nursery_tree", "processes"),
    *("scheduler", "system", "telemetry", "wire"),
    *("language/answers", "language/images", "language/templates"),
)
FRAGMENT = re.compile(
    r"(As|At|By|For|From|How|In|Its|Of|To|What|When|Where|Whether|Which|Who|Whose|With|The same)\b"
)
CODE = re.compile(r"\(W[0-9]+")


def docstrings(room: str) -> Iterator[tuple[str, str]]:
    """Yield every docstring of a room, and where it stands."""
    for path in sorted((PACKAGE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text is not None:
                    name = getattr(node, "name", "its module")
                    yield f"{path.relative_to(PACKAGE)}: {name}", text


@pytest.mark.parametrize("room", ROOMS)
def test_no_docstring_is_a_fragment(room: str) -> None:
    fragments = [
        f"{place}: {text[:60]}" for place, text in docstrings(room) if FRAGMENT.match(text)
    ]
    assert fragments == []


def test_no_docstring_cites_a_code_that_nothing_defines() -> None:
    assert [place for room in ROOMS for place, text in docstrings(room) if CODE.search(text)] == []
