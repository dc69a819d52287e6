"""``--config FILE``: a file with settings as defaults of a daemon's flags.

Typer asks in this order: the flag, the environment variable, the context's ``default_map``, which
is what the file says, and the default. Nothing here repeats that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from paddler_trio.cli.daemons.settings_file import (
    SETTINGS_FILE,
    SETTINGS_FILE_VARIABLE,
    AnyCommand,
    Problem,
    daemon_of,
    known_variables,
    read_settings_file,
    settings_of,
    unknown_variables,
)
from paddler_trio.cli.terminal import USAGE, one_line_errors, printable

FILE_IN_FORCE: Final = "paddler_trio.cli.daemons.settings_option.file"
"""Where the context keeps the file's path: the flag itself is none of the daemon's arguments."""


@cache
def whole_command() -> AnyCommand:
    """``paddler-trio`` with all commands, also those that this process has not imported yet."""
    from paddler_trio.cli.commands import command_line

    whole = typer.main.get_command(command_line())
    assert isinstance(whole, TyperGroup)
    return whole


def print_problems(file: Path, problems: Iterable[Problem]) -> None:
    """A line for each, on standard error."""
    for problem in problems:
        print(printable(f"paddler-trio: {file}: {problem}"), file=sys.stderr)


def _load(context: typer.Context, file: Path | None) -> Path | None:
    """Make what the file says the defaults of the flags that are read after this one."""
    if file is None or context.resilient_parsing:
        return file
    whole = whole_command()
    daemon = str(context.info_name)
    with one_line_errors(USAGE):
        settings = read_settings_file(file, whole)
    if settings.problems:
        print_problems(file, settings.problems)
        raise typer.Exit(USAGE)
    known = settings_of(daemon_of(whole, daemon))
    values = settings.values.get(daemon, {})
    context.meta[FILE_IN_FORCE] = file
    context.default_map = {known[key].option.name: value for key, value in values.items()}
    return file


def report_unknown_variables(context: typer.Context) -> None:
    """Warn in the log: on a machine that others use, it may be no mistake of this daemon's."""
    # a daemon has it anyway; the commands answer without
    import structlog

    log = structlog.get_logger("settings")
    here = context.find_root().command
    assert isinstance(here, TyperCommand | TyperGroup)
    unknown = unknown_variables(os.environ, known_variables(here))
    if unknown:  # here; another command may read it
        unknown = unknown_variables(os.environ, known_variables(whole_command()))
    if unknown:
        log.warning(
            "nothing reads these environment variables",
            variables=[
                name if meant is None else f"{name}; {meant} may be meant"
                for name, meant in unknown
            ],
        )


SettingsFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        f"--{SETTINGS_FILE}",
        envvar=SETTINGS_FILE_VARIABLE,
        is_eager=True,
        callback=_load,
        expose_value=False,
        metavar="FILE",
        help="TOML file with settings, a table for each daemon; flags and environment variables "
        "count before it. See docs/settings.md.",
    ),
]
"""Of a parameter that no command reads: its callback has done the work before that."""
