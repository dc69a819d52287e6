"""``paddler-trio model``: what the fleet should serve, looked at and changed.

``swap`` is ``set`` that waits: one function, two names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import attrs
import typer

from paddler_trio.cli import completion_values
from paddler_trio.cli.client_flags import JsonOption, ManagementFlags
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.model import fit_command, model_cache, model_push
from paddler_trio.cli.model.fit_command import ParameterFlags
from paddler_trio.cli.terminal import one_line_errors

model = typer.Typer(no_args_is_help=True, help="Show or change the model that all agents serve.")

model.command("fit", help="Would a model fit, on each agent or on this machine? Changes nothing.")(
    fit_command.fit
)

WAITING = "swap"


@attrs.frozen(kw_only=True)
class WishFlags:
    """The wishes beside the model."""

    file: Annotated[
        Path | None,
        typer.Option("--file", help="Inference parameters, TOML or JSON; flags win over it."),
    ] = None
    extras: Annotated[
        Path | None,
        typer.Option(
            "--extras",
            help="JSON file with the extras object, which replaces the stored one; - for standard "
            "input, {} for none.",
        ),
    ] = None
    projection: Annotated[
        str | None,
        typer.Option(
            "--projection",
            metavar="SOURCE",
            help="Multimodal projection, for images; none for none. A repository brings its own.",
        ),
    ] = None
    chat_template: Annotated[
        Path | None,
        typer.Option("--chat-template", help="Jinja file to use instead of the model's template."),
    ] = None
    no_chat_template: Annotated[
        bool, typer.Option("--no-chat-template", help="Use the model's own chat template.")
    ] = False
    parameters: ParameterFlags


@attrs.frozen(kw_only=True)
class StoringFlags:
    """The way in which a wish is stored, and what is waited for."""

    push: Annotated[
        bool,
        typer.Option(
            "--push",
            help="SOURCE is a file of this machine: upload it to the balancer's model store first. "
            "So is --projection, if it is a file here.",
        ),
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Store nothing: show the class of the change, whether it fits each agent, what is "
            "to be fetched, and the gap to expect.",
        ),
    ] = False
    wait: Annotated[
        bool | None,
        typer.Option(
            "--wait/--no-wait",
            help="Wait for the agents and show their progress.",
            show_default="only swap waits",
        ),
    ] = None
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait at most; then exit code 4.")
    ] = 600.0


@model.command("show")
@with_flags
def show(
    *,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Print the desired state: model, chat template, inference parameters, and extras if any."""
    from paddler_trio.cli.model.model_run import show_desired_state

    with one_line_errors(), ManagementClient.open(management) as client:
        show_desired_state(client, as_json=as_json)


# decorators are applied from below: set is listed first
@model.command(WAITING, help="Like set, then wait until every agent serves it or has failed.")
@model.command("set", help="Store what to serve and return at once. What is not given stays.")
@with_flags
def change(
    context: typer.Context,
    *,
    source: Annotated[
        str,
        typer.Argument(
            help="A path on the agents, https://..., hf:org/repo[:QUANT], "
            "hf:org/repo/file@revision, or none.",
            autocompletion=completion_values.models,
        ),
    ],
    wish: WishFlags,
    how: StoringFlags,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    from paddler_trio.cli.model.model_order import ModelRunOptions
    from paddler_trio.cli.model.model_run import store_desired_state

    waits = context.command.name == WAITING if how.wait is None else how.wait
    if how.push and how.dry_run:
        raise typer.BadParameter(
            "push it first with `paddler-trio model push`", param_hint="--push / --dry-run"
        )
    projection = wish.projection
    if how.push:
        source, projection = model_push.pushed_sources(
            source,
            projection,
            management=management,
            as_json=as_json,
        )
    with one_line_errors(), ManagementClient.open(management) as client:
        asked = ModelRunOptions.read(
            source=source,
            projection=projection,
            flags=attrs.asdict(wish.parameters),
            file=wish.file,
            template_file=wish.chat_template,
            no_template=wish.no_chat_template,
            extras_file=wish.extras,
        )
        code = store_desired_state(
            client,
            asked,
            timeout_s=how.timeout if waits else None,
            dry_run=how.dry_run,
            as_json=as_json,
        )
    raise typer.Exit(code)


model_cache.add_to(model)
model.command()(model_push.push)
