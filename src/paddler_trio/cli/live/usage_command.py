"""``paddler-trio usage``: what was used by day or month, for whom and of which model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import attrs
import typer

from paddler_trio.cli.client_flags import JsonOption, ManagementFlags, WideOption
from paddler_trio.cli.figures import NOTHING, count
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.live.columns import Column, table
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.terminal import (
    one_line_errors,
    print_json,
    print_lines,
    printable,
    shown_width,
    stderr,
    stdout,
)

PATH: Final = "/api/v2/usage"


@attrs.frozen(kw_only=True)
class UsageRow:
    """One line of usage: a period, and by whom or of what."""

    period: str
    key: str | None = None
    user: str | None = None
    model: str | None = None
    requests: int = 0
    failed: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    last_s: int = 0


@attrs.frozen(kw_only=True)
class UsageTable:
    """The answer of the balancer; ``by_user``: it keeps names of users."""

    begin: str
    end: str
    by_user: bool = False
    rows: list[UsageRow]
    problem: str = ""


@with_flags
def usage(
    *,
    by: Annotated[
        Literal["key", "user", "model"],
        typer.Option("--by", help="What has a line of its own: keys, their users, or models."),
    ] = "key",
    per: Annotated[
        Literal["day", "month", "all"],
        typer.Option("--per", help="A line for each day, for each month, or for all of the time."),
    ] = "month",
    month: Annotated[
        str | None,
        typer.Option(
            "--month",
            metavar="YYYY-MM",
            help="Only this month of UTC, such as 2026-11.",
            show_default="the present one by day, else all that is kept",
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")] = False,
    as_json: JsonOption = False,
    wide: WideOption = False,
    management: ManagementFlags,
) -> None:
    """Show what was used: requests and tokens by key, user or model. Days and months are of UTC.

    The same is on the panel's page Usage. Users are told apart where the balancer was started with
    --usage-by-user.
    """
    if as_csv and as_json:
        raise typer.BadParameter("give --csv or --json, not both", param_hint="--csv")
    asked = {"by": by, "per": per, **({} if month is None else {"month": month})}
    with one_line_errors(), ManagementClient.open(management) as client:
        if as_csv:
            sys.stdout.write(client.text(PATH, {**asked, "format": "csv"}))
            sys.stdout.flush()
            return
        raw = client.ask("GET", PATH, params=asked)
        if as_json:
            print_json(raw)
            return
        found = client.structured(raw, UsageTable)
        if found.rows:
            print_lines(table(_columns(by), found.rows, shown_width(wide=wide)))
        else:
            stdout().print(f"nothing was used from {found.begin} to {found.end} (UTC)")
        if by == "user" and not found.by_user:
            stderr().print("users are not told apart: start the balancer with --usage-by-user")
        if found.problem:
            stderr().print(printable(f"warning: the history: {found.problem}"))


def _columns(by: str) -> list[Column[UsageRow]]:
    names = {
        "key": [Column[UsageRow]("key", 12, lambda row: row.key or "(no key)")],
        "user": [
            Column[UsageRow]("user", 12, lambda row: row.user or "(nobody named)"),
            Column[UsageRow]("key", 12, lambda row: row.key or "(no key)"),
        ],
        "model": [Column[UsageRow]("model", 12, lambda row: row.model or NOTHING)],
    }[by]
    return [
        Column("UTC", 0, lambda row: row.period),
        *names,
        _number("requests", lambda row: count(row.requests), 0),
        _number("prompt", lambda row: count(row.prompt_tokens), 0),
        _number("cached", lambda row: count(row.cached_tokens), 3),
        _number("generated", lambda row: count(row.generated_tokens), 0),
        _number("failed", lambda row: count(row.failed), 2),
        _number("refused", lambda row: count(row.refused), 1),
        Column("last use", 0, lambda row: _moment(row.last_s), importance=4),
    ]


def _number(title: str, text: Callable[[UsageRow], str], importance: int) -> Column[UsageRow]:
    return Column(title, 0, text, importance=importance, is_right=True)


def _moment(unix_s: int) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M}"
