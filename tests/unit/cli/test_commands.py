"""Which commands are imported for a command line."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from paddler_trio.cli.commands import COMMANDS, command_line, needed_for

WHOLE = typer.main.get_command(command_line())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_all_that_its_line_needs(command: str) -> None:
    assert needed_for([command, "--help"]) == (command,)
    alone = typer.main.get_command(command_line([command]))
    assert list(alone.commands) == [command]  # type: ignore[attr-defined]


def test_there_are_no_others() -> None:
    assert set(WHOLE.commands) == set(COMMANDS)  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [[], ["--help"], ["agnet"], ["-h"], ["--unknown", "agent"]])
def test_what_names_none_needs_all(words: list[str]) -> None:
    assert needed_for(words) == COMMANDS


def test_the_version_needs_none() -> None:
    ended = CliRunner().invoke(command_line(needed_for(["--version"])), ["--version"])
    assert ended.exit_code == 0
    assert ended.stdout.startswith("paddler-trio ")


def test_a_command_that_is_none_is_told_what_there_is() -> None:
    ended = CliRunner().invoke(command_line(needed_for(["agnet"])), ["agnet"])
    assert ended.exit_code == 2
    assert "agnet" in ended.stderr
    assert "'agent'" in ended.stderr
