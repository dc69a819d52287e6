"""Options that several commands have, with one wording each."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

_UNITS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([KMGTP]?)(i?)B?", re.IGNORECASE)


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


def size_in_bytes(text: str) -> int:
    """Read ``200GB`` (a power of 1000), ``180GiB`` (of 1024) or plain bytes; typer.BadParameter."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise typer.BadParameter(f"{text!r} is no size: write one such as 200GB or 180GiB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _UNITS[match[2].upper()])
