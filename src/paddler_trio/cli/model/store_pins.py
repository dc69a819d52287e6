"""``paddler-trio model pin`` and ``unpin``: what stays in the balancer's store whatever happens."""

from __future__ import annotations

from typing import Annotated

import typer

from paddler_trio.cli.client_flags import ManagementFlags
from paddler_trio.cli.daemons.options import JsonOption
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.terminal import one_line_errors

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


@with_flags
def pin(
    *,
    source: SourcesArgument,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Keep models in the balancer's store: nothing removes them, neither want of room nor prune."""
    from paddler_trio.cli.model.store_client import StoreClient
    from paddler_trio.cli.model.store_run import pin_models

    with one_line_errors(), StoreClient.open(management) as client:
        pin_models(client, source, pinned=True, as_json=as_json)


@with_flags
def unpin(
    *,
    source: SourcesArgument,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Keep models in the balancer's store no longer than they are wanted."""
    from paddler_trio.cli.model.store_client import StoreClient
    from paddler_trio.cli.model.store_run import pin_models

    with one_line_errors(), StoreClient.open(management) as client:
        pin_models(client, source, pinned=False, as_json=as_json)
