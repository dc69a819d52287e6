"""``paddler-trio logs AGENT``: lines of an agent's log, or of its engine's, over its link."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from paddler_trio.cli import completion_values
from paddler_trio.cli.client_flags import JsonOption, ManagementFlags
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.terminal import one_line_errors

MOST_LINES: Final = 1000
"""``MAX_LOG_LINES`` of the wire, whose module takes too long to import for a help text."""


@with_flags
def logs(
    *,
    agent: Annotated[
        str, typer.Argument(help="Name or id.", autocompletion=completion_values.agents)
    ],
    engine: Annotated[
        bool, typer.Option("--engine", help="What llama.cpp wrote in its engines.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines, until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=MOST_LINES, help="How many at first.")
    ] = 200,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Show the last lines of an agent's log, or of its engine's.

    An agent keeps the last 2,000 lines of each, at most 1 MiB, without what looks like a secret.
    """
    with one_line_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.log_reader import LogReader

        reader = LogReader(client, agent, "engine" if engine else "agent", as_json=as_json)
        reader.show(reader.ask(lines))
        while follow:
            reader.follow()
