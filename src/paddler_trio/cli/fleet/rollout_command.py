"""``paddler-trio rollout``: how far a change is on each agent, and what to do about it."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from paddler_trio.cli import completion_values
from paddler_trio.cli.client_flags import JsonOption, ManagementFlags
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.fleet.fleet_command import rollout_errors
from paddler_trio.cli.management_client import ManagementClient

rollout = typer.Typer(
    invoke_without_command=True,
    help="Show how a change reaches the agents; pause it, go on, or go back.",
)

DeploymentArgument = Annotated[
    str,
    typer.Argument(
        metavar="DEPLOYMENT",
        help="The deployment; without one, `default`.",
        show_default=False,
        autocompletion=completion_values.deployments,
    ),
]


@rollout.callback()
@with_flags
def show(
    *,
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
    management: ManagementFlags,
) -> None:
    """Show the rollouts: phase, reason, and how far each agent is."""
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    if timeout is not None and not watch:
        raise typer.BadParameter("it needs --watch", param_hint="--timeout")
    with rollout_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.fleet.rollout_run import show_rollouts, watch_rollouts

        if watch:
            code = watch_rollouts(client, timeout_s=timeout, as_json=as_json)
        else:
            code = show_rollouts(client, as_json=as_json)
    raise typer.Exit(code)


COMMANDS: Final = {
    "pause": "Begin with no further agent; those that have begun go on.",
    "resume": "Go on with a rollout that is paused.",
    "abort": "Give a rollout up: agents go back to what they served before it.",
    "undo": "Go back to what the deployment served before its last rollout, also when that is "
    "over.",
}


@with_flags
def command(
    context: typer.Context,
    *,
    deployment: DeploymentArgument = "default",
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    with rollout_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.fleet.rollout_run import command_rollout

        command_rollout(client, deployment, context.command.name or "", as_json=as_json)


for name, text in COMMANDS.items():
    rollout.command(name, help=text)(command)


def _refuse_options(context: typer.Context) -> None:
    """Flags before ``pause`` would be those of ``rollout``, and have no effect."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = "--json" if name == "as_json" else f"--{name.replace('_', '-')}"
            raise typer.BadParameter(
                f"write it after {context.invoked_subcommand}", param_hint=flag
            )
