"""``paddler-trio agent``: run an agent until it is asked to stop; ``agent drain``: spare one."""

from __future__ import annotations

from typing import Annotated

import typer

from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.options import (
    JsonOption,
    LogJsonOption,
    LogLevel,
    LogLevelOption,
    ManagementAddrOption,
)
from paddler_trio.cli.terminal import one_line_errors, print_json, stdout
from paddler_trio.config import (
    DEFAULT_MANAGEMENT_ADDR,
    MAX_SLOTS,
    AgentConfig,
    default_threads,
    split_address,
)
from paddler_trio.errors import ConfigurationError

agent = typer.Typer(invoke_without_command=True, subcommand_metavar="[drain NAME]")
"""A command that also has sub-commands: without one, it runs the daemon."""


@agent.callback()
def run(
    context: typer.Context,
    management_addr: Annotated[
        str | None,
        typer.Option(
            help="host:port of the balancer's management service.", show_default="required"
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_SLOTS, help="How many requests to run at once.", show_default="required"
        ),
    ] = None,
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
    if context.invoked_subcommand is not None:
        return
    if management_addr is None or slots is None:
        missing = "--management-addr" if management_addr is None else "--slots"
        raise typer.BadParameter(f"Missing option {missing!r}.")
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


@agent.command()
def drain(
    name: Annotated[str, typer.Argument(help="Name or id of a connected agent.")],
    undo: Annotated[bool, typer.Option("--undo", help="Give it work again.")] = False,
    as_json: JsonOption = False,
    management_addr: ManagementAddrOption = DEFAULT_MANAGEMENT_ADDR,
) -> None:
    """Let an agent finish what it has and give it nothing new, until told otherwise."""
    with one_line_errors(), ManagementClient.open(management_addr) as client:
        view, raw = client.drain(name, drained=not undo)
        if as_json:
            print_json(raw)
        elif undo:
            stdout().print(f"{view.label} gets work again")
        else:
            stdout().print(f"{view.label} gets nothing new; it works on {view.slots_processing}")
