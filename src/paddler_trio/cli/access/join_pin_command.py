"""``paddler-trio join-pin``: show a PIN with which one machine of the local network may join."""

from __future__ import annotations

from typing import Annotated

import typer

from paddler_trio.cli.client_flags import JsonOption, ManagementFlags
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.terminal import one_line_errors


@with_flags
def join_pin(
    *,
    ttl: Annotated[
        str, typer.Option(help="How long it is good for, such as 90s or 5m; at most 15m.")
    ] = "5m",
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="KEY=VALUE",
            help="What the machine that joins is labelled with; may be repeated.",
        ),
    ] = None,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Make the PIN that is in force worthless.")
    ] = False,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Show a PIN of six digits for one new machine, where `agent --discover` asks for it.

    It is good for three tries, one machine and some minutes, and only where the balancer has TLS.
    """
    with one_line_errors():
        from paddler_trio.cli.access import join_token_run

        with ManagementClient.open(management) as client:
            if revoke:
                join_token_run.revoke_pin(client)
            else:
                join_token_run.make_pin(client, ttl=ttl, label=label, as_json=as_json)
