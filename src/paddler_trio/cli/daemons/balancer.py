"""``paddler-trio balancer``: run a balancer until it is asked to stop."""

from __future__ import annotations

import typer

from paddler_trio.cli.client_flags import LogJsonOption, LogLevel, LogLevelOption
from paddler_trio.cli.daemons.settings_option import SettingsFileOption, report_unknown_variables
from paddler_trio.cli.flags import Given, with_flags
from paddler_trio.cli.terminal import one_line_errors
from paddler_trio.system.settings.balancer_config import BalancerConfig


@with_flags
def balancer(
    context: typer.Context,
    settings: Given[BalancerConfig],
    log_level: LogLevelOption = LogLevel.info,
    log_json: LogJsonOption = None,
    config_file: SettingsFileOption = None,
) -> None:
    """Run a balancer: applications on one port, operators and agents on the other."""
    # what a daemon needs takes a second to import: `--help` and the client commands do without
    import trio

    from paddler_trio.balancer.assembly.balancer_daemon import run_balancer_daemon
    from paddler_trio.cli.daemons.daemons import run_daemon
    from paddler_trio.system.systemd_notify import SystemdNotifier

    with one_line_errors():
        config = settings.read()
    if config.access_log is None and config.access_log_file is not None:
        raise typer.BadParameter(
            "without --access-log text or json nothing is written there",
            param_hint="--access-log-file",
        )
    notifier = SystemdNotifier.from_environment()

    async def body(stop: trio.Event) -> None:
        report_unknown_variables(context)
        await run_balancer_daemon(config, stop, notifier=notifier)

    run_daemon(body, log_level=log_level, log_json=log_json)
