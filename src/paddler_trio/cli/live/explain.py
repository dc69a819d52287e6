"""``paddler-trio explain ID``: what happened to a request, step by step."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from paddler_trio.cli import completion_values
from paddler_trio.cli.balancer_http import BalancerRefusedError
from paddler_trio.cli.client_flags import JsonOption, ManagementFlags
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.terminal import one_line_errors, print_json, stdout

PIPE_WIDTH = 120


@with_flags
def explain(
    *,
    request: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The key of `paddler-trio requests`, or the id that the client was given.",
            show_default=False,
            autocompletion=completion_values.requests,
        ),
    ],
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Show what a request waited for, where it went and why, and how long each step took."""
    from paddler_trio.cli.live.explain_text import waterfall
    from paddler_trio.cli.live.request_views import RequestDetail
    from paddler_trio.cli.live.requests_run import REQUESTS_PATH

    with one_line_errors(), ManagementClient.open(management) as client:
        try:
            raw = client.ask("GET", f"{REQUESTS_PATH}/{quote(request, safe='')}")
        except BalancerRefusedError as error:
            if error.status != 404:
                raise
            raise BalancerRefusedError(
                404,
                f"no request {request!r} is known: the last 10,000 are kept; "
                "see `paddler-trio requests`",
            ) from error
        if as_json:
            print_json(raw)
            return
        console = stdout()
        width = console.width if console.is_terminal else PIPE_WIDTH
        for line in waterfall(client.structured(raw, RequestDetail), width=width):
            console.print(line, soft_wrap=True)
