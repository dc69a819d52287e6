"""``paddler-trio rollout``: how far a change is on each agent, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paddler_trio.cli.daemons.options import JsonOption, KeyFileOption, ManagementAddrOption
from paddler_trio.cli.daemons.tls_options import with_tls
from paddler_trio.cli.fleet.fleet_command import rollout_errors
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.net.tls.client_tls import SYSTEM_TRUST, ClientTls
from paddler_trio.system.config import DEFAULT_MANAGEMENT_ADDR

rollout = typer.Typer(
    invoke_without_command=True,
    help="Show how a change reaches the agents; pause it, go on, or go back.",
)

DeploymentArgument = Annotated[
    str,
    typer.Argument(
        metavar="DEPLOYMENT", help="The deployment; without one, `default`.", show_default=False
    ),
]


@rollout.callback()
@with_tls
def show(
    context: typer.Context,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Show every change until no rollout is under way, then how it ended."
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0,
            help="Seconds to watch at most; then exit code 4.",
            show_default="none",
        ),
    ] = None,
    as_json: JsonOption = False,
    management_addr: ManagementAddrOption = DEFAULT_MANAGEMENT_ADDR,
    key_file: KeyFileOption = None,
    tls: ClientTls = SYSTEM_TRUST,
) -> None:
    """Show the rollouts: phase, reason, and how far each agent is."""
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    if timeout is not None and not watch:
        raise typer.BadParameter("it needs --watch", param_hint="--timeout")
    with rollout_errors(), ManagementClient.open(management_addr, key_file, tls) as client:
        from paddler_trio.cli.fleet.rollout_run import show_rollouts, watch_rollouts

        if watch:
            code = watch_rollouts(client, timeout_s=timeout, as_json=as_json)
        else:
            code = show_rollouts(client, as_json=as_json)
    raise typer.Exit(code)


@rollout.command()
@with_tls
def pause(
    deployment: DeploymentArgument = "default",
    as_json: JsonOption = False,
    management_addr: ManagementAddrOption = DEFAULT_MANAGEMENT_ADDR,
    key_file: KeyFileOption = None,
    tls: ClientTls = SYSTEM_TRUST,
) -> None:
    """Begin with no further agent; those that have begun go on."""
    _command(
        "pause", deployment, as_json=as_json, address=management_addr, key_file=key_file, tls=tls
    )


@rollout.command()
@with_tls
def resume(
    deployment: DeploymentArgument = "default",
    as_json: JsonOption = False,
    management_addr: ManagementAddrOption = DEFAULT_MANAGEMENT_ADDR,
    key_file: KeyFileOption = None,
    tls: ClientTls = SYSTEM_TRUST,
) -> None:
    """Go on with a rollout that is paused."""
    _command(
        "resume", deployment, as_json=as_json, address=management_addr, key_file=key_file, tls=tls
    )


@rollout.command()
@with_tls
def abort(
    deployment: DeploymentArgument = "default",
    as_json: JsonOption = False,
    management_addr: ManagementAddrOption = DEFAULT_MANAGEMENT_ADDR,
    key_file: KeyFileOption = None,
    tls: ClientTls = SYSTEM_TRUST,
) -> None:
    """Give a rollout up: agents go back to what they served before it."""
    _command(
        "abort", deployment, as_json=as_json, address=management_addr, key_file=key_file, tls=tls
    )


@rollout.command()
@with_tls
def undo(
    deployment: DeploymentArgument = "default",
    as_json: JsonOption = False,
    management_addr: ManagementAddrOption = DEFAULT_MANAGEMENT_ADDR,
    key_file: KeyFileOption = None,
    tls: ClientTls = SYSTEM_TRUST,
) -> None:
    """Go back to what the deployment served before its last rollout, also when that is over."""
    _command(
        "undo", deployment, as_json=as_json, address=management_addr, key_file=key_file, tls=tls
    )


def _command(
    command: str,
    deployment: str,
    *,
    as_json: bool,
    address: str,
    key_file: Path | None,
    tls: ClientTls,
) -> None:
    with rollout_errors(), ManagementClient.open(address, key_file, tls) as client:
        from paddler_trio.cli.fleet.rollout_run import command_rollout

        command_rollout(client, deployment, command, as_json=as_json)


def _refuse_options(context: typer.Context) -> None:
    """Flags before ``pause`` would be those of ``rollout``, and have no effect."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = "--json" if name == "as_json" else f"--{name.replace('_', '-')}"
            raise typer.BadParameter(
                f"write it after {context.invoked_subcommand}", param_hint=flag
            )
