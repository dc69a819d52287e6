"""``paddler-trio fleet``: all deployments at once, from a TOML file, with their history."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Final

import typer

from paddler_trio.cli.balancer_http import BalancerRefusedError
from paddler_trio.cli.client_flags import JsonOption, ManagementFlags, WideOption
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.terminal import FAILED, REFUSED, one_line_errors

fleet = typer.Typer(
    no_args_is_help=True, help="Show or change everything that is served, by a TOML file."
)

FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="The fleet in TOML, a list of deployments; - for standard input."
    ),
]
WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Show the rollouts until they have ended.")
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0, help="Seconds to wait at most; then exit code 4.")
]
TIMEOUT_S: Final = 1800.0
"""Of all deployments; one agent's progress has the deadline of its rollout."""


def rollout_errors() -> AbstractContextManager[None]:
    """Errors are one line; what the balancer refuses has an exit code of its own."""
    return one_line_errors(FAILED, {BalancerRefusedError: REFUSED})


@fleet.command()
@with_flags
def apply(
    *,
    file: FileArgument,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Store nothing: show what would change, whether it fits, what is to be fetched, "
            "and the gap to expect.",
        ),
    ] = False,
    note: Annotated[
        str | None,
        typer.Option("--note", help="For the history.", show_default="the note in the file"),
    ] = None,
    wait: WaitOption = True,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Make the fleet what a file says; deployments that are not in it are removed."""
    with rollout_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.fleet.fleet_file import read_fleet_file
        from paddler_trio.cli.fleet.fleet_run import apply_fleet, preview_fleet

        wanted = read_fleet_file(file)
        if dry_run:
            code = preview_fleet(client, wanted, as_json=as_json)
        else:
            code = apply_fleet(
                client,
                wanted,
                note=wanted.note if note is None else note,
                timeout_s=timeout if wait else None,
                as_json=as_json,
            )
    raise typer.Exit(code)


@fleet.command("show")
@with_flags
def show(
    *,
    wide: WideOption = False,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Print the revision in force and its deployments: what each serves, and on how many agents."""
    with rollout_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.fleet.fleet_run import show_fleet

        show_fleet(client, wide=wide, as_json=as_json)


@fleet.command()
@with_flags
def diff(
    *,
    file: FileArgument,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Print what applying a file would change, field by field."""
    with rollout_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.fleet.fleet_file import read_fleet_file
        from paddler_trio.cli.fleet.fleet_run import diff_fleet

        diff_fleet(client, read_fleet_file(file), as_json=as_json)


@fleet.command()
@with_flags
def history(
    *,
    wide: WideOption = False,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """List the revisions that are kept: when, by whom, and why."""
    with rollout_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.fleet.fleet_run import show_history

        show_history(client, wide=wide, as_json=as_json)


@fleet.command()
@with_flags
def undo(
    *,
    to_revision: Annotated[
        int | None,
        typer.Option(
            "--to-revision",
            min=0,
            help="Go back to this one.",
            show_default="the one before, past those that failed since",
        ),
    ] = None,
    wait: WaitOption = True,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Go back to an earlier revision; as a new revision, so that it can be undone as well."""
    with rollout_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.fleet.fleet_run import undo_fleet

        code = undo_fleet(
            client, to=to_revision, timeout_s=timeout if wait else None, as_json=as_json
        )
    raise typer.Exit(code)
