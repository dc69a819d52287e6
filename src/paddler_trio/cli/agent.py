"""``paddler-trio agent``: run an agent until it is asked to stop."""

from __future__ import annotations

from typing import Annotated

import typer

from paddler_trio.cli.options import LogJsonOption, LogLevel, LogLevelOption
from paddler_trio.config import MAX_SLOTS, AgentConfig, default_threads, split_address
from paddler_trio.errors import ConfigurationError


def agent(
    management_addr: Annotated[
        str, typer.Option(help="host:port of the balancer's management service.")
    ],
    slots: Annotated[
        int, typer.Option(min=1, max=MAX_SLOTS, help="How many requests to run at once.")
    ],
    name: Annotated[
        str | None, typer.Option(help="What people call this agent, in lists and results.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads of the engine.",
            show_default="all cores but one, left to the event loops",
        ),
    ] = None,
    drain_timeout: Annotated[
        int,
        typer.Option(
            min=0, help="Milliseconds running requests may take after SIGTERM or a model swap."
        ),
    ] = 30_000,
    log_level: LogLevelOption = LogLevel.info,
    log_json: LogJsonOption = None,
) -> None:
    """Run an agent: it dials in, loads the desired model and works on requests in slots."""
    # what a daemon needs takes a second to import: `--help` and the client commands do without
    import trio

    from paddler_trio.cli.daemons import run_daemon
    from paddler_trio.daemon.systemd_notify import SystemdNotifier
    from paddler_trio.nursery_tree.agent_tree import run_agent

    try:
        host, port = split_address(management_addr)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--management-addr") from error
    config = AgentConfig(
        management_host=host,
        management_port=port,
        slots=slots,
        name=name,
        threads=threads or default_threads(),
        drain_timeout_s=drain_timeout / 1000,
    )
    notifier = SystemdNotifier.from_environment()

    async def body(stop: trio.Event) -> None:
        await run_agent(config, stop, notifier=notifier)

    run_daemon(body, log_level=log_level, log_json=log_json)
