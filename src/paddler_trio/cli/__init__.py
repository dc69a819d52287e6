"""The ``paddler-trio`` command: one file a sub-command, assembled here.

What only a daemon needs is imported when a daemon is started: ``--help`` and the client commands
answer at once.
"""

from __future__ import annotations

import shlex
import sys

import typer

from paddler_trio.cli import (
    agent,
    agents,
    audit,
    balancer,
    bench_command,
    chat,
    completion,
    config_command,
    demo,
    doctor,
    explain,
    fleet_command,
    join_command,
    join_token_command,
    key,
    model,
    model_cache,
    model_push,
    requests_command,
    rollout_command,
    rpc_server,
    setup_command,
    store_pins,
    template,
    tls_command,
    tls_fingerprint,
    top,
    tree,
)
from paddler_trio.cli.daemon_commands import DaemonCommand
from paddler_trio.cli.exit_codes import USAGE
from paddler_trio.cli.paddler_v1_flags import translate
from paddler_trio.cli.terminal import printable
from paddler_trio.cli.version import VersionOption

app = typer.Typer(
    name="paddler-trio",
    help="Serve open models with llama.cpp on machines you own: a balancer and its agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


@app.callback()
def _root(version: VersionOption = False) -> None:  # the flag's callback does the work
    pass


app.command(cls=DaemonCommand)(balancer.balancer)
app.add_typer(agent.agent, name="agent")
model_cache.add_to(model.model)
store_pins.add_to(model.model)
model.model.command()(model_push.push)
app.add_typer(model.model, name="model")
app.add_typer(fleet_command.fleet, name="fleet")
app.add_typer(rollout_command.rollout, name="rollout")
app.add_typer(template.template, name="template")
app.add_typer(key.key, name="key")
tls_command.tls.command()(tls_fingerprint.fingerprint)
app.add_typer(tls_command.tls, name="tls")
app.add_typer(config_command.config, name="config")
app.add_typer(join_token_command.join_token, name="join-token")
app.command()(join_command.join)
app.add_typer(agents.agents, name="agents")
app.command()(top.top)
app.command()(top.dashboard)
app.command()(requests_command.requests)
app.command()(explain.explain)
app.command()(chat.chat)
app.command()(bench_command.bench)
app.command()(tree.tree)
app.command()(audit.audit)
app.command()(rpc_server.rpc_server)
app.command()(setup_command.setup)
app.command()(doctor.doctor)
app.command()(demo.demo)
app.command()(completion.completion)


def main() -> None:
    """Entry of the console script."""
    completion.prepare_completion()
    app(_arguments_today(sys.argv[1:]), prog_name=completion.PROGRAM)


def _arguments_today(given: list[str]) -> list[str]:
    """What a command line means now, if it is one of Paddler before 2.0; that is said."""
    translation = translate(given)
    if translation is None:
        return given
    for word in (*translation.notes, *translation.refusals):
        print(printable(f"{completion.PROGRAM}: Paddler 1.x: {word}"), file=sys.stderr)
    if translation.refusals:
        sys.exit(USAGE)
    today = shlex.join([completion.PROGRAM, *translation.arguments])
    print(printable(f"{completion.PROGRAM}: Paddler 1.x: so this runs: {today}"), file=sys.stderr)
    return [*translation.arguments]
