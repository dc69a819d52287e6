"""``paddler-trio model pin`` and ``unpin``: what stays in the balancer's store whatever happens."""

from __future__ import annotations

from typing import Annotated

import typer

from paddler_trio.cli.daemons.options import JsonOption, KeyFileOption, ManagementAddrOption
from paddler_trio.cli.daemons.tls_options import with_tls
from paddler_trio.cli.terminal import one_line_errors
from paddler_trio.net.tls.client_tls import SYSTEM_TRUST, ClientTls
from paddler_trio.system.config import DEFAULT_MANAGEMENT_ADDR

SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Which models of the store; as `model list` prints them, or a repository.",
    ),
]


def add_to(model: typer.Typer) -> None:
    """Make these commands of ``model``."""
    model.command()(pin)
    model.command()(unpin)


@with_tls
def pin(
    source: SourcesArgument,
    as_json: JsonOption = False,
    management_addr: ManagementAddrOption = DEFAULT_MANAGEMENT_ADDR,
    key_file: KeyFileOption = None,
    tls: ClientTls = SYSTEM_TRUST,
) -> None:
    """Keep models in the balancer's store: nothing removes them, neither want of room nor prune."""
    from paddler_trio.cli.model.store_client import StoreClient
    from paddler_trio.cli.model.store_run import pin_models

    with one_line_errors(), StoreClient.open(management_addr, key_file, tls) as client:
        pin_models(client, source, pinned=True, as_json=as_json)


@with_tls
def unpin(
    source: SourcesArgument,
    as_json: JsonOption = False,
    management_addr: ManagementAddrOption = DEFAULT_MANAGEMENT_ADDR,
    key_file: KeyFileOption = None,
    tls: ClientTls = SYSTEM_TRUST,
) -> None:
    """Keep models in the balancer's store no longer than they are wanted."""
    from paddler_trio.cli.model.store_client import StoreClient
    from paddler_trio.cli.model.store_run import pin_models

    with one_line_errors(), StoreClient.open(management_addr, key_file, tls) as client:
        pin_models(client, source, pinned=False, as_json=as_json)
