"""Options that several commands have, with one wording each."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
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
        show_default="columns on a terminal and in the journal, else JSON",
    ),
]
ManagementAddrOption = Annotated[
    str,
    typer.Option(
        "--management-addr",
        envvar="PADDLER_TRIO_MANAGEMENT_ADDR",
        help="[https://]host:port of the balancer's management service.",
    ),
]
InferenceAddrOption = Annotated[
    str,
    typer.Option(
        "--inference-addr",
        envvar="PADDLER_TRIO_INFERENCE_ADDR",
        help="[https://]host:port of the balancer's inference service.",
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar="PADDLER_TRIO_KEY_FILE",
        help="File that holds the API key to show to the balancer, if it asks for one.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON for scripts instead of text for people.")
]
