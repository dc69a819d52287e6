"""``paddler-trio key``: make, list and revoke the API keys a balancer asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import attrs
import typer

from paddler_trio.cli.client_flags import JsonOption
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.terminal import one_line_errors
from paddler_trio.scheduler.limits.key_limits import (
    MAX_CONCURRENT,
    MAX_REQUESTS_PER_MINUTE,
    MAX_TOKENS_PER_DAY,
    MAX_TOKENS_PER_MONTH,
    KeyLimits,
)

key = typer.Typer(
    no_args_is_help=True,
    help="Make, list and revoke the API keys of a balancer's --api-key-file.",
)

FileOption = Annotated[
    Path,
    typer.Option(
        "--file", help="The balancer's --api-key-file; `key new` makes it if there is none."
    ),
]


@attrs.frozen(kw_only=True)
class KeyFlags:
    """The scopes, the time and the limits of a key."""

    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", help="inference, management, or both with a comma.", show_default="inference"
        ),
    ] = None
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Only this deployment or preset, and others for which the option is repeated; "
            "without it all, also those that come later.",
        ),
    ] = None
    ttl: Annotated[
        str | None,
        typer.Option(
            "--ttl",
            metavar="TIME",
            help="How long it is valid, such as 12h, 30d or 4w; without it, until it is revoked.",
        ),
    ] = None
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="MOMENT",
            help="Until when it is valid, such as 2026-12-31T23:59:59Z.",
        ),
    ] = None
    requests_per_minute: Annotated[
        int | None,
        typer.Option(
            "--requests-per-minute",
            min=1,
            max=MAX_REQUESTS_PER_MINUTE,
            help="Requests that it may send in any sixty seconds; more get 429.",
        ),
    ] = None
    max_concurrent: Annotated[
        int | None,
        typer.Option(
            "--max-concurrent",
            min=1,
            max=MAX_CONCURRENT,
            help="Requests that it may have under way, those that wait included; more get 429.",
        ),
    ] = None
    tokens_per_day: Annotated[
        int | None,
        typer.Option(
            "--tokens-per-day",
            min=1,
            max=MAX_TOKENS_PER_DAY,
            help="Tokens of its prompts and answers in a day of UTC; then its requests get 429.",
        ),
    ] = None
    tokens_per_month: Annotated[
        int | None,
        typer.Option(
            "--tokens-per-month",
            min=1,
            max=MAX_TOKENS_PER_MONTH,
            help="The same in a month of the calendar, UTC; both may be given.",
        ),
    ] = None

    @property
    def limits(self) -> KeyLimits:
        return KeyLimits(
            self.requests_per_minute,
            self.max_concurrent,
            self.tokens_per_day,
            self.tokens_per_month,
        )


@key.command()
@with_flags
def new(
    *,
    name: Annotated[str, typer.Argument(help="What logs and metrics call the key.")],
    file: FileOption,
    use: KeyFlags,
) -> None:
    """Make a key and print it, this once; the file keeps only a salted hash of it."""
    with one_line_errors():
        from paddler_trio.cli.access.key_run import make_key

        make_key(
            name,
            file,
            scope=use.scope,
            model=use.model,
            ttl=use.ttl,
            expires=use.expires,
            limits=use.limits,
        )


@key.command("list")
def list_keys(file: FileOption, as_json: JsonOption = False) -> None:
    """List the keys: scopes, age, end and limits; the keys themselves are written nowhere."""
    with one_line_errors():
        from paddler_trio.cli.access import key_run

        key_run.list_keys(file, as_json=as_json)


@key.command()
def revoke(name: Annotated[str, typer.Argument(help="Name of the key.")], file: FileOption) -> None:
    """Make a key worthless; what it was for goes on asking for a key."""
    with one_line_errors():
        from paddler_trio.cli.access.key_run import revoke_key

        revoke_key(name, file)
