"""``--help`` in a real terminal: whatever its width, each flag of each command can be typed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from person_at_terminal import person

from cli_in_process import COMMAND


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield all commands with the words that call them."""
    yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*words, name))


ALL = dict(commands(COMMAND))


def test_there_are_commands_to_look_at() -> None:
    assert len(ALL) > 50
    assert ("model", "swap") in ALL


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_no_flag_is_cut(words: tuple[str, ...], columns: int) -> None:
    with person(*words, "--help", columns=columns) as someone:
        assert someone.waits_for_end() == 0
    assert max(map(len, someone.lines)) <= columns
    shown = {word.rstrip(",") for line in someone.lines for word in line.split()}
    flags = {
        flag
        for parameter in ALL[words].params
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("--")
    }
    assert flags - shown == set()
    assert not any(word.startswith("--") and "\N{HORIZONTAL ELLIPSIS}" in word for word in shown)


def test_an_address_is_shown_as_it_is_written() -> None:
    """Square brackets are no markup."""
    with person("agents", "--help", columns=80) as someone:
        someone.waits_for_end()
    assert any("[https://]host:port" in line for line in someone.lines)
