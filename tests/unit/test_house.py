"""Who may import whom, and what the pure folders may not touch."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "paddler_trio"
IMPURE = {"trio", "time", "socket", "random", "logging", "threading", "asyncio", "structlog"}
MAY_IMPORT = {
    "errors": set[str](),
    "setting": set[str](),
    "wire": {"setting", "errors"},
    "scheduler": set[str](),
    "system": {"wire", "scheduler", "setting", "errors"},
    "language": {"wire", "system", "errors"},
    "net": {"wire", "scheduler", "system", "errors"},
    "nursery_tree": {"wire", "scheduler", "system", "errors"},
    "telemetry": {"net", "wire", "scheduler", "system", "errors"},
    "models": {"net", "wire", "system", "errors"},
    "processes": {"models", "net", "language", "wire", "scheduler", "system", "errors"},
    "agent": {
        *("telemetry", "processes", "models", "nursery_tree", "net", "language"),
        *("wire", "scheduler", "system", "errors"),
    },
    "balancer": {
        *("telemetry", "processes", "models", "nursery_tree", "net"),
        *("wire", "scheduler", "system", "errors"),
    },
    "cli": {
        *("agent", "balancer", "telemetry", "processes", "models", "nursery_tree", "net"),
        *("language", "wire", "scheduler", "system", "setting", "errors"),
    },
    "__main__": {"cli"},
}
"""Which rooms a room may import from, beside itself: directions run one way."""
MAY_IMPORT_WITHIN = {
    "wire/paddler": {"wire/paddler", "wire"},
    "wire/engine": {"wire/engine", "wire"},
    "wire/trio": {"wire/trio", "wire/paddler", "wire/engine", "wire"},
    "scheduler/dispatch": {"scheduler/dispatch"},
    "scheduler/batching": {"scheduler/batching"},
    "scheduler/fleet": {"scheduler/fleet"},
}
"""The same between the folders of one room; those that are not named may import their siblings."""


def _files(folder: str) -> list[Path]:
    return sorted((PACKAGE / folder).rglob("*.py"))


@functools.cache
def _imports(file: Path) -> Sequence[str]:
    names: list[str] = []
    for node in _statements(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names.append(node.module or "")
    return names


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All of them, at any depth: no expression, of which there are ten times as many, has one."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.expr):
            yield node
            yield from _statements(node)


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_run_one_way(folder: str) -> None:
    for file in _files(folder):
        for name in _imports(file):
            top, _, rest = name.partition(".")
            room = rest.partition(".")[0]
            if top == "paddler_trio" and room not in ("", folder):
                assert room in MAY_IMPORT[folder], f"{file.relative_to(PACKAGE)} imports {name}"


@pytest.mark.parametrize("folder", MAY_IMPORT_WITHIN)
def test_imports_run_one_way_within_a_room(folder: str) -> None:
    room = folder.partition("/")[0]
    for file in _files(folder):
        for name in _imports(file):
            parts = name.split(".")[1:]
            if parts[:1] != [room]:
                continue
            is_folder = (PACKAGE / room / parts[1]).is_dir() if len(parts) > 1 else False
            place = f"{room}/{parts[1]}" if is_folder else room
            assert place in MAY_IMPORT_WITHIN[folder], f"{file.relative_to(PACKAGE)}: {name}"


@pytest.mark.parametrize("folder", ["language", "processes/preparation", "processes/engine"])
def test_language_and_child_processes_know_no_trio(folder: str) -> None:
    for file in _files(folder):
        tops = {name.partition(".")[0] for name in _imports(file)}
        assert "trio" not in tops, f"{file.relative_to(PACKAGE)} imports trio"


@pytest.mark.parametrize("folder", ["scheduler", "wire"])
def test_pure_folders_have_no_clock_no_chance_and_no_input_or_output(folder: str) -> None:
    for file in _files(folder):
        tops = {name.partition(".")[0] for name in _imports(file)}
        assert not tops & IMPURE, f"{file.relative_to(PACKAGE)} imports {tops & IMPURE}"
        for node in _statements(ast.parse(file.read_text())):
            assert not isinstance(node, ast.AsyncFunctionDef), f"{file}: {node.name} is async"


def test_who_parses_http_with_h11_bounds_what_that_costs() -> None:
    """A process may have none of the modules that do it already."""
    parses = (
        *("h11.Connection(", "trio_websocket.wrap_client_stream(", "(H11Protocol)"),
        *("httpx.Client(", "httpx.AsyncClient(", "httpx.get("),
    )
    texts = {file: file.read_text() for file in PACKAGE.rglob("*.py")}
    found = {file for file, text in texts.items() if any(call in text for call in parses)}
    assert len(found) >= 9
    assert all("\nbound_parsing()\n" in texts[file] for file in found), found


def test_no_two_modules_of_tests_have_one_name() -> None:
    """All folders of tests are on the path of one process: the second one is not imported."""
    files = [p for p in Path(__file__).parents[1].rglob("*.py") if p.name != "conftest.py"]
    twice = {name: n for name, n in Counter(p.name for p in files).items() if n > 1}
    assert not twice


def test_child_processes_import_nothing_from_the_folder_they_are_started_in() -> None:
    """`-m` alone puts it before everything else, the standard library too; `-P` leaves it out."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if re.search(r"""["']-m["']""", text) else ():
            if isinstance(node, ast.List | ast.Tuple):
                words = [each.value if isinstance(each, ast.Constant) else "" for each in node.elts]
                if "-m" in words:
                    found.append((path.name, words[: words.index("-m")]))
    assert found
    assert [name for name, before in found if "-P" not in before] == []
