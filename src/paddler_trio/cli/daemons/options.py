"""Options that several commands have, with one wording each."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class LogLevel(StrEnum):
    """Levels of a log, from most to least."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


LogLevelOption = Annotated[
    LogLevel, typer.Option("--log-level", help="How much to log, on standard error.")
]
LogJsonOption = Annotated[
    bool | None,
    typer.Option(
        "--log-json/--log-text",
        help="Log JSON lines or columns.",
        show_default="columns on a terminal and in the journal, else JSON",
    ),
]
WideOption = Annotated[
    bool,
    typer.Option(
        "--wide", help="Show all columns, and nothing cut, whatever the terminal's width."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON for scripts instead of text for people.")
]
