"""The sub-commands by name. A command's module is imported when the command line names it, all of
them only where all are shown: most of what a short command takes is the import of others."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Final, TypeAlias

import typer

from paddler_trio import __version__
from paddler_trio.cli.daemons.daemon_commands import DaemonCommand
from paddler_trio.cli.help import give_help
from paddler_trio.system.hardware.machine_reader import llama_cpp_build

BINDINGS: Final = "llama-cpp-python"


def versions() -> list[str]:
    """A line each: ours, the bindings', llama.cpp's, Python's."""
    try:
        bindings = importlib.metadata.version(BINDINGS)
    except importlib.metadata.PackageNotFoundError:
        bindings = "is not installed"
    return [
        f"paddler-trio {__version__}",
        f"{BINDINGS} {bindings}",
        f"llama.cpp {llama_cpp_build()}",
        f"Python {platform.python_version()}",
    ]


def _print_versions(context: typer.Context, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        print("\n".join(versions()))
        raise typer.Exit


VersionOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--version",
        "-V",
        is_eager=True,
        callback=_print_versions,
        expose_value=False,
        help="Print the versions of paddler-trio, llama.cpp and Python.",
    ),
]


COMMANDS: Final = {
    "balancer": "daemons.balancer",
    "agent": "daemons.agent",
    "model": "model.model",
    "fleet": "fleet.fleet_command",
    "rollout": "fleet.rollout_command",
    "template": "template.template",
    "key": "access.key",
    "tls": "access.tls_command",
    "config": "daemons.config_command",
    "join-token": "access.join_token_command",
    "join-pin": "access.join_pin_command",
    "join": "access.join_command",
    "agents": "live.agents",
    "logs": "live.logs_command",
    "problems": "live.problems_command",
    "top": "live.top",
    "dashboard": "live.top",
    "requests": "live.requests_command",
    "explain": "live.explain",
    "chat": "chat.chat_command",
    "bench": "bench.bench_command",
    "capacity": "capacity_command",
    "tree": "live.tree",
    "audit": "live.audit",
    "usage": "live.usage_command",
    "rpc-server": "rpc_server",
    "setup": "setup_command",
    "doctor": "doctor",
    "demo": "daemons.demo",
    "up": "daemons.up",
    "completion": "completion",
}
"""Commands by name, with the module below ``paddler_trio.cli`` that has each."""


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
        module = import_module(f"paddler_trio.cli.{COMMANDS[name]}")
        command = getattr(module, identifier)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        elif name == "balancer":
            app.command(cls=DaemonCommand)(command)
        else:
            app.command()(command)
    give_help(app)
    return app


def _root(version: VersionOption = False) -> None:  # the flag's callback does the work
    pass
