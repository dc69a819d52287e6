"""``paddler-trio agent``: run an agent until it is asked to stop; ``agent drain``: spare one."""

from __future__ import annotations

from typing import Annotated, Final

import attrs
import typer

from paddler_trio.cli import completion_values
from paddler_trio.cli.access.agent_membership import Membership, membership
from paddler_trio.cli.client_flags import (
    JsonOption,
    LogJsonOption,
    LogLevel,
    LogLevelOption,
    ManagementFlags,
    checked_address,
)
from paddler_trio.cli.daemons.daemon_commands import DaemonGroup
from paddler_trio.cli.daemons.readings import BALANCER_ADDRESS, told_address
from paddler_trio.cli.daemons.settings_option import SettingsFileOption, report_unknown_variables
from paddler_trio.cli.flags import Given, with_flags
from paddler_trio.cli.terminal import one_line_errors, print_json, require_llama, stdout
from paddler_trio.net.tls.client_tls import ClientTls
from paddler_trio.system.config import (
    DEFAULT_MANAGEMENT_ADDR,
    MAX_SLOTS,
    default_prefix_cache_bytes,
)
from paddler_trio.system.settings.agent_config import AgentConfig, UpstreamConfig
from paddler_trio.wire.engine.engine_settings import EngineSettings

DEFAULT_DRAFTS: Final = 4
"""Guessed by a draft model, if the operator names no number."""
MISSING = {
    "--management-addr": "give host:port of the balancer's management service, such as "
    f"{DEFAULT_MANAGEMENT_ADDR}, or let this machine join one with `paddler-trio join`",
    "--slots": f"give how many requests run at once, 1 to {MAX_SLOTS}",
}
"""What to give for options that are required, mostly."""

agent = typer.Typer(
    cls=DaemonGroup,
    invoke_without_command=True,
    subcommand_metavar="[drain NAME]",
)
"""A command that also has sub-commands: without one, it runs the daemon."""


@agent.callback()
@with_flags
def run(
    context: typer.Context,
    *,
    management_addr: Annotated[
        str | None,
        typer.Option(
            envvar="PADDLER_TRIO_MANAGEMENT_ADDR",
            callback=BALANCER_ADDRESS,
            help="[https://]host:port of the balancer's management service.",
            show_default="required, unless this machine has joined",
        ),
    ] = None,
    discover: Annotated[
        bool,
        typer.Option(
            "--discover",
            help="If this machine has not joined, look for a `balancer --discoverable` on the "
            "local network and ask for its PIN. Needs the extra `discovery`.",
        ),
    ] = False,
    settings: Given[AgentConfig],
    log_level: LogLevelOption = LogLevel.info,
    log_json: LogJsonOption = None,
    config_file: SettingsFileOption = None,
    tls: ClientTls,
) -> None:
    """Run an agent: it dials in, loads the desired model and works on requests in slots."""
    if context.invoked_subcommand is not None:
        return
    with one_line_errors():
        if discover:
            _discover(settings, management_addr, tls)
        config, member = _config(settings, management_addr, tls)
    # what a daemon needs takes a second to import: `--help` and the client commands do without
    import structlog
    import trio

    from paddler_trio.agent.assembly.agent_daemon import serve_agent
    from paddler_trio.cli.daemons.daemons import run_daemon
    from paddler_trio.system.systemd_notify import SystemdNotifier

    notifier = SystemdNotifier.from_environment()
    log = structlog.get_logger("agent")

    async def body(stop: trio.Event) -> None:
        report_unknown_variables(context)
        if member.ignored is not None:
            log.warning("a credential that is here is not used", reason=member.ignored)
        await serve_agent(config, stop, notifier=notifier)

    run_daemon(body, log_level=log_level, log_json=log_json)


def _discover(settings: Given[AgentConfig], management_addr: str | None, tls: ClientTls) -> None:
    """Join a balancer of the local network, if none is known."""
    if management_addr is not None:
        raise typer.BadParameter(
            "give --management-addr or --discover, not both", param_hint="--discover"
        )
    from paddler_trio.cli.access.join_run import join_discovered

    asked = settings.read(management_host="", management_port=0)
    if asked.token_file is None and asked.credential_file is None:
        join_discovered(name=asked.name, state_dir=asked.state_dir, tls=tls)


def _config(
    settings: Given[AgentConfig], management_addr: str | None, tls: ClientTls
) -> tuple[AgentConfig, Membership]:
    """Read the settings, and find what they leave open: a balancer, a name, a credential."""
    # until it is known where the balancer is, it is nowhere
    asked = settings.read(management_host="", management_port=0)
    member = membership(
        management_addr=None if management_addr is None else told_address(management_addr),
        name=asked.name,
        token_file=asked.token_file,
        credential_file=asked.credential_file,
        state_dir=asked.state_dir,
    )
    if member.address is None or not ("slots" in settings or asked.upstream):
        missing = "--management-addr" if member.address is None else "--slots"
        raise typer.BadParameter(f"Missing option {missing!r}: {MISSING[missing]}")
    if asked.upstream is None:
        require_llama()
    tls = member.trusting(tls)
    address = checked_address(member.address, tls, option="--management-addr")
    if address.is_tls:
        tls.context()  # at every dialling again; what is wrong from the start ends it here
    config = attrs.evolve(
        asked,
        management_host=address.host,
        management_port=address.port,
        has_tls=address.is_tls,
        tls_ca=tls.ca_file,
        tls_fingerprint=tls.fingerprint,
        tls_client_cert=tls.cert_file,
        tls_client_key=tls.key_file,
        name=member.name,
        token_file=None if member.has_credential else member.token_file,
        credential_file=member.token_file if member.has_credential else None,
        upstream=_upstream(settings, asked),
        engine=_engine(settings, asked.engine),
    )
    return config, member


def _upstream(settings: Given[AgentConfig], asked: AgentConfig) -> UpstreamConfig | None:
    """Return the server with what flags of the agent say about it."""
    if asked.upstream is None:
        return None
    return attrs.evolve(
        asked.upstream,
        slots=asked.slots if "slots" in settings else None,
        stream_interval_ms=asked.engine.stream_interval_ms,
    )


def _engine(settings: Given[AgentConfig], asked: EngineSettings) -> EngineSettings:
    """Return the engine's settings with defaults that follow from the machine and from others."""
    if "prefix_cache_ram" not in settings:
        asked = attrs.evolve(asked, prefix_store_bytes=default_prefix_cache_bytes())
    if asked.draft_model is not None and asked.max_drafts == 0:
        asked = attrs.evolve(asked, max_drafts=DEFAULT_DRAFTS)
    return asked


@agent.command()
@with_flags
def drain(
    *,
    name: Annotated[
        str,
        typer.Argument(
            help="Id of a connected agent, or its name if no other has it.",
            autocompletion=completion_values.agents,
        ),
    ],
    undo: Annotated[bool, typer.Option("--undo", help="Give it work again.")] = False,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Let an agent finish what it has and give it nothing new, until told otherwise."""
    from paddler_trio.cli.management_client import ManagementClient

    with one_line_errors(), ManagementClient.open(management) as client:
        view, raw = client.drain(name, drained=not undo)
        if as_json:
            print_json(raw)
        elif undo:
            stdout().print(f"{view.label} gets work again")
        else:
            stdout().print(f"{view.label} gets nothing new; it works on {view.slots_processing}")
