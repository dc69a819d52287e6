"""``paddler-trio join``: swap a join token for a credential of this machine's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paddler_trio.cli.client_flags import JsonOption
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.terminal import one_line_errors
from paddler_trio.net.tls.client_tls import ClientTls
from paddler_trio.system.config import MAX_SLOTS

StateDirOption = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="PADDLER_TRIO_STATE_DIR",
        help="Where this agent keeps its credential; one folder for each agent of a machine.",
        show_default="STATE_DIRECTORY, else ~/.local/state/paddler-trio",
    ),
]


@with_flags
def join(
    *,
    name: Annotated[
        str | None,
        typer.Option(
            help="What this agent is called.", show_default="the token's, else the host's"
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_SLOTS,
            help="Go on as `paddler-trio agent` with so many slots.",
            show_default="only join",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="File with the join token; else standard input."),
    ] = None,
    state_dir: StateDirOption = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Give up the credential that is there.")
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Send secrets without TLS beyond this machine."),
    ] = False,
    as_json: JsonOption = False,
    tls: ClientTls,
) -> None:
    """Join a balancer with a token of `join-token new`, from standard input or a file.

    The token is never an argument, which every user of the machine could read. Later starts of
    `paddler-trio agent` need no token and no address. What verifies the balancer is in the token;
    --tls-ca and --tls-fingerprint count where it has no hash.
    """
    with one_line_errors():
        from paddler_trio.cli.access import join_run

        join_run.join_here(
            name=name,
            slots=slots,
            token_file=token_file,
            state_dir=state_dir,
            is_replacing=replace,
            is_insecure=insecure,
            as_json=as_json,
            tls=tls,
        )
