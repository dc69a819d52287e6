"""The options of an agent that stands in front of a server instead of running models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from paddler_trio.cli.daemons.instance_options import told_address
from paddler_trio.cli.model.judged_values import ADDRESS, UPSTREAM
from paddler_trio.system.config import UpstreamConfig
from paddler_trio.wire.shape_error import ShapeError
from paddler_trio.wire.trio.placement_rules import check_deployment

UpstreamOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        callback=UPSTREAM,
        help="Run no model: offer the slots of the llama-server at http(s)://host:port, or of any "
        "server with OpenAI's API if --slots is given.",
        show_default="run models",
    ),
]
UpstreamKeyFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="File with the key that the server in --upstream asks for; read anew when it changes."
    ),
]
UpstreamCaOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Authorities (PEM) by which an https server in --upstream is verified; read anew when "
        "they change.",
        show_default="those of the system",
    ),
]
UpstreamExternalAddrOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        callback=ADDRESS,
        help="With --upstream: the server's address in lists of agents. Nothing is sent there: "
        "requests reach the server through this agent.",
        show_default="that of --upstream",
    ),
]
DeploymentOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="With --upstream: the model name under which requests ask for this server, and for "
        "others of the same name.",
        show_default="upstream",
    ),
]
MonitoringIntervalOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        max=3600,
        help="With --upstream: seconds between two looks at the server.",
        show_default="1",
    ),
]


def upstream_config(
    *,
    url: str | None,
    slots: int | None,
    key_file: Path | None,
    ca: Path | None,
    deployment: str | None,
    interval_s: float | None,
    stream_interval_ms: float,
    external_addr: str | None,
) -> UpstreamConfig | None:
    """None without a URL; typer.BadParameter for what makes sense only with one.

    ConfigurationError if the machine does not say what ``aws:metadata:ITEM`` stands for.
    """
    if url is None:
        given = {
            "--upstream-key-file": key_file,
            "--upstream-ca": ca,
            "--deployment": deployment,
            "--monitoring-interval": interval_s,
            "--upstream-external-addr": external_addr,
        }
        for option, value in given.items():
            if value is not None:
                raise typer.BadParameter("makes sense with --upstream only", param_hint=option)
        return None
    # these import numpy, which `--help` and the client commands do without
    from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT
    from paddler_trio.wire.trio.upstream_messages import DEFAULT_UPSTREAM

    name = deployment or DEFAULT_UPSTREAM
    try:
        check_deployment(name, "deployment")
    except ShapeError as error:
        raise typer.BadParameter(error.text, param_hint="--deployment") from error
    if name == DEFAULT_DEPLOYMENT:
        raise typer.BadParameter(
            f"{name!r} is the deployment of Paddler's desired state; choose another name",
            param_hint="--deployment",
        )
    return UpstreamConfig(
        url=told_address(url),
        slots=slots,
        key_file=key_file,
        ca=ca,
        deployment=name,
        interval_s=1.0 if interval_s is None else interval_s,
        stream_interval_ms=stream_interval_ms,
        external_address=None if external_addr is None else told_address(external_addr),
    )
