"""Options about what is measured of requests, with one wording each."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from paddler_trio.cli.model.judged_values import COLLECTOR


class AccessLog(StrEnum):
    """How a line of the access log is written."""

    off = "off"
    text = "text"
    json = "json"


OtlpEndpointOption = Annotated[
    str | None,
    typer.Option(
        "--otlp-endpoint",
        metavar="URL",
        callback=COLLECTOR,
        help="Send spans of requests to this OpenTelemetry collector, OTLP over HTTP, such as "
        "http://127.0.0.1:4318. Needs the extra `tracing`; see docs/tracing.md.",
    ),
]
TraceSampleRatioOption = Annotated[
    float,
    typer.Option(
        "--trace-sample-ratio",
        min=0,
        max=1,
        help="Which part of the traces that begin here is sent; those of a caller follow its flag.",
    ),
]
AccessLogOption = Annotated[
    AccessLog,
    typer.Option(
        "--access-log",
        help="Write a line for each request of a client: logfmt or JSON, without any text of it.",
    ),
]
AccessLogFileOption = Annotated[
    Path | None,
    typer.Option(
        "--access-log-file",
        help="Where it is appended; opened anew on SIGHUP.",
        show_default="standard output",
    ),
]


def access_log_form(chosen: AccessLog, file: Path | None) -> Literal["text", "json"] | None:
    """None for no access log; typer.BadParameter for a file without one."""
    if chosen is AccessLog.off:
        if file is not None:
            raise typer.BadParameter(
                "without --access-log text or json nothing is written there",
                param_hint="--access-log-file",
            )
        return None
    return "json" if chosen is AccessLog.json else "text"
