"""``paddler-trio requests``: what is in flight, and what was; in a table, as JSON or as CSV."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import attrs
import typer

from paddler_trio.cli import completion_values
from paddler_trio.cli.balancer_http import BalancerRefusedError
from paddler_trio.cli.client_flags import JsonOption, ManagementFlags, WideOption
from paddler_trio.cli.flags import with_flags
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


class RequestState(StrEnum):
    """Requests in flight, those that have ended, or all."""

    all = "all"
    in_flight = "in_flight"
    finished = "finished"


class RequestEnding(StrEnum):
    """The ways in which requests end."""

    done = "done"
    failed = "failed"
    stopped = "stopped"


@attrs.frozen(kw_only=True)
class QueryFlags:
    """The choice of the requests that are listed."""

    state: Annotated[
        RequestState,
        typer.Option("--state", help="Those in flight, those that have ended, or all."),
    ] = RequestState.all
    deployment: Annotated[
        str,
        typer.Option(
            "--deployment",
            help="Only of this deployment.",
            autocompletion=completion_values.deployments,
        ),
    ] = ""
    client: Annotated[
        str, typer.Option("--client", help="Only of this client: the name of its API key.")
    ] = ""
    agent: Annotated[
        str,
        typer.Option(
            "--agent",
            help="Only those that this agent had.",
            autocompletion=completion_values.agents,
        ),
    ] = ""
    ending: Annotated[
        RequestEnding | None, typer.Option("--ending", help="Only those that ended so.")
    ] = None
    since: Annotated[
        float | None,
        typer.Option(
            "--since", min=0, help="Only those that were in flight in the last so many seconds."
        ),
    ] = None
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=10_000, help="How many at most, newest first.")
    ] = 50


@with_flags
def requests(
    *,
    query: QueryFlags,
    cancel: Annotated[
        int | None,
        typer.Option(
            "--cancel",
            metavar="KEY",
            autocompletion=completion_values.requests,
            min=0,
            help="End this request instead of listing any: its client gets an error.",
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")] = False,
    wide: WideOption = False,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """List requests: where they are, what they waited for, how they ended."""
    if as_csv and as_json:
        raise typer.BadParameter("give --csv or --json, not both", param_hint="--csv")
    with one_line_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.live.requests_run import (
            RequestsQuery,
            csv_lines,
            read_requests,
            table_lines,
        )

        if cancel is not None:
            _cancel(client, cancel)
            return
        wanted = RequestsQuery(
            state=query.state.value,
            client=query.client,
            deployment=query.deployment,
            agent=query.agent,
            ending="" if query.ending is None else query.ending.value,
            since_s=query.since,
            limit=query.limit,
        )
        page = read_requests(client, wanted)
        if as_json:
            raws = [request.raw for request in page.requests]
            print_json(
                {"now_ms": page.now_ms, "time": page.time, "requests": raws, "next": page.next}
            )
        elif as_csv:
            for line in csv_lines(page):
                print(printable(line))
        elif not page.requests:
            stdout().print("no request is known that is so; see --state, or send one")
        else:
            print_lines(table_lines(page, shown_width(wide=wide)))


def _cancel(client: ManagementClient, key: int) -> None:
    from paddler_trio.cli.live.requests_run import cancel_request

    try:
        cancel_request(client, key)
    except BalancerRefusedError as error:
        if error.status != 404:
            raise
        raise BalancerRefusedError(404, f"no request {key} is in flight") from error
    stderr().print(f"request {key} is cancelled")
