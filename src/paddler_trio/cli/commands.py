"""The sub-commands by name. A command's module is imported when the command line names it, all of
them only where all are shown: most of what a short command takes is the import of others."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Final

import typer

from paddler_trio.cli.daemons.daemon_commands import DaemonCommand
from paddler_trio.cli.version import VersionOption

COMMANDS: Final = (
    "balancer",
    "agent",
    "model",
    "fleet",
    "rollout",
    "template",
    "key",
    "tls",
    "config",
    "join-token",
    "join",
    "agents",
    "top",
    "dashboard",
    "requests",
    "explain",
    "chat",
    "bench",
    "tree",
    "audit",
    "rpc-server",
    "setup",
    "doctor",
    "demo",
    "completion",
)

_MODULES: Final = {
    "bench": "bench_command",
    "config": "config_command",
    "dashboard": "top",
    "fleet": "fleet_command",
    "join": "join_command",
    "join-token": "join_token_command",
    "requests": "requests_command",
    "rollout": "rollout_command",
    "setup": "setup_command",
    "tls": "tls_command",
}
"""Those whose module has another name than the command."""


def needed_for(arguments: Iterable[str]) -> Iterable[str]:
    """The commands that can answer this command line: one, if it begins with the name of one; none
    if it asks for the version; else all."""
    first = next(iter(arguments), None)
    if first == "--version":
        return ()
    return (first,) if first in COMMANDS else COMMANDS


def command_line(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """``paddler-trio``, with these commands."""
    app = typer.Typer(
        name="paddler-trio",
        help="Serve open models with llama.cpp on machines you own: a balancer and its agents.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_root)
    for name in commands:
        identifier = name.replace("-", "_")
        module = import_module(f"paddler_trio.cli.{_MODULES.get(name, identifier)}")
        command = getattr(module, identifier)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        elif name == "balancer":
            app.command(cls=DaemonCommand)(command)
        else:
            app.command()(command)
    return app


def _root(version: VersionOption = False) -> None:  # the flag's callback does the work
    pass
