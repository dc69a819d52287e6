"""Options that several commands have, with one wording each."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class LogLevel(StrEnum):
    """From most to least."""

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
        show_default="columns on a terminal, else JSON",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON for scripts instead of text for people.")
]
