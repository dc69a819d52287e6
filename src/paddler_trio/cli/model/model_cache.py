"""``paddler-trio model pull, list, verify, prune, pin, unpin``: models that agents keep where they
run, and those in the balancer's store.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from paddler_trio.cli import completion_values
from paddler_trio.cli.client_flags import JsonOption, ManagementFlags, WideOption
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.terminal import one_line_errors

AgentsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--agent",
        help="Only the agent of this name or id; repeatable.",
        autocompletion=completion_values.agents,
    ),
]
SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Which models of the store; as `model list` prints them, or a repository.",
        autocompletion=completion_values.models,
    ),
]
PIN_COMMANDS: Final = {
    "pin": "Keep models in the balancer's store: nothing removes them, neither want of room nor "
    "prune.",
    "unpin": "Keep models in the balancer's store no longer than they are wanted.",
}
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def add_to(model: typer.Typer) -> None:
    """Make these commands of ``model``."""
    for command in (pull, verify, prune):
        model.command()(command)
    model.command("list")(list_models)
    for name, text in PIN_COMMANDS.items():
        model.command(name, help=text)(pin)


@with_flags
def pull(
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="https://..., hf:org/repo[:QUANT] or hf:org/repo/file@revision."
        ),
    ],
    projection: Annotated[
        str | None,
        typer.Option(
            "--projection",
            metavar="SOURCE",
            help="Fetch this projection too; none leaves out the one of a repository.",
        ),
    ] = None,
    agent: AgentsOption = None,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Have agents fetch a model now, and serve what they serve; Ctrl-C stops it."""
    from paddler_trio.cli.model.cache_run import pull_models

    with one_line_errors(), ManagementClient.open(management) as client:
        code = pull_models(client, source, projection, agents=agent, as_json=as_json)
    raise typer.Exit(code)


@with_flags
def list_models(
    *,
    agent: AgentsOption = None,
    wide: WideOption = False,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """List the models on the agents' machines and in the balancer's store: size, last use, when
    they were verified."""
    from paddler_trio.cli.model.cache_run import list_caches
    from paddler_trio.cli.model.store_client import StoreClient

    with (
        one_line_errors(),
        ManagementClient.open(management) as client,
        StoreClient.open(management) as store,
    ):
        code = list_caches(
            client, None if agent else store, agents=agent, wide=wide, as_json=as_json
        )
    raise typer.Exit(code)


@with_flags
def verify(
    *,
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE]...",
            help="Which models; as `model list` prints them, or a repository.",
            autocompletion=completion_values.models,
            show_default="all",
        ),
    ] = None,
    agent: AgentsOption = None,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Hash cached models again; what does not match is quarantined."""
    from paddler_trio.cli.model.cache_run import verify_caches

    with one_line_errors(), ManagementClient.open(management) as client:
        code = verify_caches(client, source or [], agents=agent, as_json=as_json)
    raise typer.Exit(code)


@with_flags
def prune(
    *,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="SOURCE|N|AGE",
            help="What stays: a source, the N models used last, or what was used within AGE "
            "(12h, 30d, 8w); repeatable.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would go, and remove nothing.")
    ] = False,
    agent: AgentsOption = None,
    store: Annotated[
        bool, typer.Option("--store", help="In the balancer's store, not on agents.")
    ] = False,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Remove cached models, but none that is desired, pinned, in use or being fetched."""
    from paddler_trio.cli.model.cache_run import prune_caches
    from paddler_trio.cli.model.store_client import StoreClient
    from paddler_trio.cli.model.store_run import prune_store

    rules = keep_rules(keep or [])
    if store and agent:
        raise typer.BadParameter("give one of --store and --agent", param_hint="--store")
    if store:
        with one_line_errors(), StoreClient.open(management) as client:
            raise typer.Exit(prune_store(client, rules, dry_run=dry_run, as_json=as_json))
    with one_line_errors(), ManagementClient.open(management) as client:
        code = prune_caches(client, rules, dry_run=dry_run, agents=agent, as_json=as_json)
    raise typer.Exit(code)


@with_flags
def pin(
    context: typer.Context,
    *,
    source: SourcesArgument,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    from paddler_trio.cli.model.store_client import StoreClient
    from paddler_trio.cli.model.store_run import pin_models

    with one_line_errors(), StoreClient.open(management) as client:
        pin_models(client, source, pinned=context.command.name == "pin", as_json=as_json)


def keep_rules(keep: list[str]) -> dict[str, object]:
    """The fields of ``Prune`` for these texts; typer.BadParameter for one that is none."""
    from paddler_trio.models.cache.cache_inventory import SourcePattern
    from paddler_trio.models.model_reference import UnknownSourceError

    if not keep:
        raise typer.BadParameter(
            "say what stays: the models used last (--keep 5), those used lately (--keep 30d), or a "
            "source; --keep 0 keeps only what is in use",
            param_hint="--keep",
        )
    rules: dict[str, object] = {}
    sources: list[str] = []
    for text in keep:
        if re.fullmatch(r"[0-9]{1,9}", text):
            rules["newest"] = max(int(text), _number(rules.get("newest")))
        elif age := re.fullmatch(r"([0-9]{1,7})([smhdw])", text):
            age_s = int(age[1]) * _UNITS_S[age[2]]
            rules["used_within_s"] = max(age_s, _number(rules.get("used_within_s")))
        else:
            try:
                sources.append(SourcePattern.parse(text).text)
            except UnknownSourceError as error:
                raise typer.BadParameter(str(error), param_hint="--keep") from error
    return {**rules, "sources": sources}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
