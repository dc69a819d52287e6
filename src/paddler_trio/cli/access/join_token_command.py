"""``paddler-trio join-token``: make, list and revoke what new machines join with."""

from __future__ import annotations

from typing import Annotated

import typer

from paddler_trio.cli import completion_values
from paddler_trio.cli.client_flags import JsonOption, ManagementFlags, WideOption
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.terminal import one_line_errors

join_token = typer.Typer(
    no_args_is_help=True, help="Make, list and revoke tokens with which new machines join."
)


@join_token.command()
@with_flags
def new(
    *,
    ttl: Annotated[
        str, typer.Option(help="How long it is good for, such as 30m, 1h or 7d; at most 30d.")
    ] = "1h",
    uses: Annotated[
        int, typer.Option(min=1, max=10_000, help="How many machines may join with it.")
    ] = 1,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="KEY=VALUE",
            help="What those who join are labelled with, whatever they say; may be repeated.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The only agent it is for; then it has one use.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="[https://]host:port under which the new machine reaches the management service.",
            show_default="as this command reaches it",
        ),
    ] = None,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Make a token and print the line to paste on the new machine, this once."""
    with one_line_errors():
        from paddler_trio.cli.access import join_token_run

        fields = join_token_run.order(ttl=ttl, uses=uses, label=label, name=name, address=address)
        with ManagementClient.open(management) as client:
            join_token_run.make_token(client, fields, as_json=as_json)


@join_token.command("list")
@with_flags
def list_tokens(
    *,
    wide: WideOption = False,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """List the tokens that may still be used; their secrets are kept nowhere."""
    with one_line_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.access import join_token_run

        join_token_run.list_tokens(client, wide=wide, as_json=as_json)


@join_token.command()
@with_flags
def revoke(
    *,
    token_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="As `join-token list` shows it.",
            autocompletion=completion_values.tokens,
        ),
    ],
    management: ManagementFlags,
) -> None:
    """Make a token worthless; agents that joined with it stay."""
    with one_line_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.access import join_token_run

        join_token_run.revoke_token(client, token_id)
