"""The words that people read in the panel and in the terminal are those of the glossary."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddler_trio.cli.commands import command_line
from texts_in_code import SOURCES, joined

ROOT = Path(__file__).parents[3]
PANEL = ROOT / "panel" / "src"
ALLOWED = {
    "cli/doctor.py": {"event loop"},  # what a core is for, said to who sets a machine up
}
"""By the module, below the sources."""
FLAGS = re.compile(r"--[a-z-]+|`[^`]*`|\$\{[^}]*\}|[\w-]+-[\w-]+")
"""Names of flags and fields are as they are typed."""
COMMENT = re.compile(r"/\*.*?\*/|(?<!:)//[^\n]*", re.DOTALL)
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
BETWEEN_TAGS = re.compile(r">([^<>{}=;()]+)<")


def unwanted() -> dict[str, str]:
    """What people do not read, and what they read in its place, as the glossary has it."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    table = text.partition("## What people read")[2].partition("\n## ")[0]
    found: dict[str, str] = {}
    for row in re.findall(r"^\| \*\*(.+?)\*\* \|.*\| (.+?) \|$", table, re.MULTILINE):
        found |= {word.strip(): row[0] for word in row[1].split(",")}
    return found


def texts_of_panel() -> Iterator[tuple[str, str]]:
    """Texts with a space in them, and what stands between tags; a name in the code has no space."""
    for path in sorted(PANEL.rglob("*.ts*")):
        if ".test." in path.name or path.name == "examples.ts":
            continue
        source = COMMENT.sub("", path.read_text(encoding="utf-8"))
        texts = [first or second for first, second in LITERAL.findall(source)]
        for text in texts:
            if " " in text.strip() and not text.lstrip().startswith(("import ", "class")):
                yield str(path.relative_to(ROOT)), text
        for text in BETWEEN_TAGS.findall(source):
            yield str(path.relative_to(ROOT)), text


def texts_of_terminal() -> Iterator[tuple[str, str]]:
    """Texts with a space in them, without the docstrings that are no help."""
    for path in sorted((SOURCES / "cli").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documents = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            text = None if id(node) in documents else joined(node)
            if text is not None and " " in text.strip():
                yield str(path.relative_to(SOURCES)), text


def helps() -> Iterator[tuple[str, str]]:
    """What `--help` says of each command."""

    def walk(app: object, name: str) -> Iterator[tuple[str, str]]:
        for command in app.registered_commands:  # type: ignore[attr-defined]
            help_text = command.help or (command.callback.__doc__ if command.callback else "") or ""
            yield f"{name} {command.name or command.callback.__name__}", help_text
        for group in app.registered_groups:  # type: ignore[attr-defined]
            yield from walk(group.typer_instance, f"{name} {group.name}")

    yield from walk(command_line(), "paddler-trio")


def words_in(text: str, words: dict[str, str]) -> list[str]:
    plain = FLAGS.sub(" ", text).casefold()
    return [word for word in words if re.search(rf"\b{re.escape(word)}\b", plain)]


def test_the_glossary_says_what_people_read_and_what_not() -> None:
    words = unwanted()
    assert words["leased"] == "prefill"
    assert words["streaming"] == "decode"
    assert words["digest"] == "revision"
    assert words["loop lag"] == "late by"
    assert words_in("The event loop is late", words) == ["event loop"]
    assert words_in("see `digest` and --state-digest", words) == []


@pytest.mark.parametrize("texts", [texts_of_panel, texts_of_terminal, helps])
def test_panel_and_terminal_keep_to_it(texts: object) -> None:
    assert callable(texts)
    words, wrong, seen = unwanted(), [], 0
    for place, text in texts():
        seen += 1
        for word in words_in(text, words):
            if word not in ALLOWED.get(place, ()):
                wrong.append(f"{place}: {word!r} is {words[word]!r} to people: {text[:120]!r}")
    assert seen > 50
    assert not wrong, "\n".join(wrong)
