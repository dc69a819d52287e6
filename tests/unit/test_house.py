"""Who may import whom, and what the pure folders may not touch."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

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
    "net": {"wire", "scheduler", "system", "setting", "errors"},
    "nursery_tree": {"net", "wire", "scheduler", "system", "errors"},
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


class Facts(NamedTuple):
    """What the tests ask of one file, which is parsed once.

    ``imports``: names of modules as they are written. ``modules``: the modules that are meant.
    ``functions``: of each its name, lines and parameters.
    """

    imports: Sequence[str]
    modules: frozenset[str]
    functions: Sequence[tuple[str, int, int]]


@functools.cache
def _facts(file: Path) -> Facts:
    imports: list[str] = []
    modules: set[str] = set()
    functions: list[tuple[str, int, int]] = []
    for node in _statements(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            imports += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            name = node.module or ""
            imports.append(name)
            for alias in node.names if name.startswith("paddler_trio") else ():
                place = PACKAGE.parent / f"{name}.{alias.name}".replace(".", "/")
                is_module = place.with_suffix(".py").exists() or place.is_dir()
                modules.add(f"{name}.{alias.name}" if is_module else name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            names = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
            assert node.end_lineno is not None
            num_lines = node.end_lineno - node.lineno + 1
            functions.append((node.name, num_lines, len(names - {"self", "cls"})))
    return Facts(imports, frozenset(modules), functions)


def _imports(file: Path) -> Sequence[str]:
    return _facts(file).imports


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
    assert len(found) >= 7
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


# ------------------------------------------------------------------------------- how large it is

MOST_ROOMS, MOST_LOOSE = 12, 4
MOST_PERMISSIONS = 70
MOST_FILES = 25
MORE_FILES: dict[str, int] = {}
"""Folders that have more files of their own than a folder shall have."""
MOST_PARAMETERS = 12
MOST_FUNCTION_LINES, MOST_LONG_FUNCTIONS = 60, 3
MOST_TREE_LINES = 3500
MOST_MODULE_LINES, MOST_LONG_MODULES = 400, 16
UNTYPED = re.compile(r"(?:Mapping|dict)\[str, object\]|\bJson\b")
MOST_UNTYPED = 694
NAMES_TWICE = {"infill.py", "problems.py", "prompts.py"}
PRIVATE_IMPORTS = {"net/h11_bounds.py: h11._receivebuffer"}
"""Private modules of dependencies. h11's buffer has no public bound on the bytes that it looks
through for the end of a head; were it renamed, the import would fail when a daemon starts."""


def test_the_house_has_few_rooms_and_few_ways_between_them() -> None:
    rooms = [each for each in PACKAGE.iterdir() if (each / "__init__.py").exists()]
    assert len(rooms) <= MOST_ROOMS
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_LOOSE
    assert sum(map(len, MAY_IMPORT.values())) <= MOST_PERMISSIONS


def test_no_folder_has_too_many_files() -> None:
    counts = Counter(str(file.parent.relative_to(PACKAGE)) for file in _files(""))
    large = {folder: count for folder, count in counts.items() if count > MOST_FILES}
    assert {
        folder: count for folder, count in large.items() if count > MORE_FILES.get(folder, 0)
    } == {}


def test_functions_and_modules_are_short() -> None:
    functions = [(file.name, *each) for file in _files("") for each in _facts(file).functions]
    assert [each for each in functions if each[3] > MOST_PARAMETERS] == []
    long = [each for each in functions if each[2] > MOST_FUNCTION_LINES]
    assert len(long) <= MOST_LONG_FUNCTIONS, long
    sizes = {file.name: len(file.read_text().splitlines()) for file in _files("")}
    modules = [name for name, size in sizes.items() if size > MOST_MODULE_LINES]
    assert len(modules) <= MOST_LONG_MODULES, modules


def test_few_documents_are_untyped() -> None:
    """A document whose members are known is a class that the codec reads and writes."""
    lines = [line for file in _files("") for line in file.read_text().splitlines()]
    found = [line for line in lines if UNTYPED.search(line) and "import" not in line]
    assert len(found) <= MOST_UNTYPED


def test_the_tree_is_small() -> None:
    lines = sum(len(file.read_text().splitlines()) for file in _files("nursery_tree"))
    assert lines <= MOST_TREE_LINES


def test_few_files_have_one_name() -> None:
    counts = Counter(file.name for file in _files("") if not file.name.startswith("__"))
    assert {name for name, count in counts.items() if count > 1} <= NAMES_TWICE


def test_a_request_goes_through_no_untyped_corridor() -> None:
    found = [
        str(file.relative_to(PACKAGE))
        for file in _files("")
        if file.relative_to(PACKAGE).parts[0] != "net"
        and re.search(r'"paddler_trio\.\w+"\]|"extensions"', file.read_text())
    ]
    assert found == []


def test_nothing_private_of_a_dependency_is_imported() -> None:
    found = {
        f"{file.relative_to(PACKAGE)}: {name}"
        for file in _files("")
        for name in _imports(file)
        if not name.startswith(("paddler_trio", "__future__"))
        and any(part.startswith("_") for part in name.split("."))
    }
    assert found <= PRIVATE_IMPORTS
    reached = [
        str(file.relative_to(PACKAGE)) for file in _files("") if "trio._core" in file.read_text()
    ]
    assert reached == []


def test_modules_import_each_other_in_no_circle() -> None:
    modules = {_module(file): file for file in _files("")}
    edges = {name: _facts(file).modules & modules.keys() for name, file in modules.items()}
    while bare := {name for name, imported in edges.items() if not imported & edges.keys()}:
        for name in bare:
            del edges[name]
    in_circles = {name for name in edges if name in _reached(name, edges)}
    assert in_circles == set()


def _module(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def _reached(start: str, edges: Mapping[str, Set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = edges.get(waiting.pop(), set()) - found
        found |= fresh
        waiting += fresh
    return found
