"""Every ``paddler-trio`` command in a block of the documentation is one that there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_in_process import COMMAND
from documented_blocks import DOCS, ROOT, blocks, pages
from documented_commands import PROGRAM, WrongCommandError, check, commands
from paddler_trio.cli.daemons.paddler_v1_flags import AGENT, BALANCER

pytestmark = pytest.mark.thorough  # all pages are parsed

OF_OTHERS = {"migration_from_paddler_1.md"}
"""Pages that name the flags of other programs throughout."""
PAGES = [
    page
    for page in pages()
    if page.name not in OF_OTHERS and any(block.typed for block in blocks(page))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_command_line_has_every_command_and_flag_that_a_page_shows(page: Path) -> None:
    for block in blocks(page):
        for words in commands(block.typed):
            try:
                check(words)
            except WrongCommandError as error:
                pytest.fail(f"{block.place}: {error}")


def flags_of(command: Any) -> Iterator[str]:
    """Of a command and of those below it."""
    for param in command.params:
        yield from (*param.opts, *param.secondary_opts)
    for each in getattr(command, "commands", {}).values():
        yield from flags_of(each)


COMMANDS = frozenset(getattr(COMMAND, "commands", {}))
FLAGS = {*flags_of(COMMAND), "--help"}
OLD = AGENT.go | AGENT.rust | BALANCER.go | BALANCER.rust
OTHERS = {
    "--enable-feature": "Prometheus",
    "--gpus": "Docker",
    "--sleep-idle-seconds": "llama-server",
    **{f"--{flag}": "Paddler before 2.0" for flag in OLD},
}
"""Flags that pages name without saying of which other program they are."""


@pytest.mark.parametrize(
    "page",
    [page for page in pages() if page.name not in OF_OTHERS and page.parent.name != "decisions"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_flag_that_a_sentence_names_is_one(page: Path) -> None:
    """But for decisions, which stay as they were when flags change."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    ours = [
        code
        for code in re.findall(r"`([^`\n]+)`", text)
        if code.startswith("--") or code.partition(" ")[0] in {PROGRAM, *COMMANDS}
    ]
    named = {
        flag
        for code in ours
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9](?![*\w-])", code)
    }
    assert named - FLAGS - set(OTHERS) == set()


def test_the_pages_show_most_of_the_command_line() -> None:
    """So that the test above looks at something."""
    texts = [each.text for page in PAGES for each in blocks(page) if each.is_commands]
    shown = {words[0] for text in texts for words in commands(text) if words}
    assert {"balancer", "agent", "model", "fleet", "key", "join", "doctor", "top"} <= shown
    assert DOCS / "start.md" in PAGES


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("paddler-trio balancr", "no command 'balancr'"),
        ("paddler-trio agent --slotz 4", "No such option"),
        ("paddler-trio model swap", "needs source"),
        ("echo x | paddler-trio model", "needs a sub-command"),
        ("paddler-trio agents extra words &", "no command 'extra'"),
        ("paddler-trio tree \\\n  --nothing 2> log", "No such option"),
    ],
)
def test_a_command_that_is_wrong_is_found(line: str, problem: str) -> None:
    (words,) = commands(line)
    with pytest.raises(WrongCommandError, match=problem):
        check(words)


def test_a_command_is_found_behind_pipes_in_substitutions_and_over_several_lines() -> None:
    text = (
        'a | X=1 paddler-trio agents --json > f; echo "$(paddler-trio doctor)" # paddler-trio no\n'
    )
    text += "paddler-trio chat 'two\nlines' \\\n  --json … && kill $(pidof -x paddler-trio)\n"
    assert list(commands(text)) == [["agents", "--json"], ["chat", "two\nlines", "--json"]]
