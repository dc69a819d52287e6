"""The ``paddler-trio`` command: one file a sub-command, assembled here."""

from __future__ import annotations

import typer

from paddler_trio.cli.agent import agent
from paddler_trio.cli.agents import agents
from paddler_trio.cli.balancer import balancer
from paddler_trio.cli.chat import chat
from paddler_trio.cli.demo import demo
from paddler_trio.cli.doctor import doctor
from paddler_trio.cli.model import model
from paddler_trio.cli.tree import tree

app = typer.Typer(
    name="paddler-trio",
    help="Serve open models with llama.cpp on machines you own: a balancer and its agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(balancer)
app.command()(agent)
app.add_typer(model, name="model")
app.command()(agents)
app.command()(chat)
app.command()(tree)
app.command()(doctor)
app.command()(demo)


def main() -> None:
    """Entry of the console script."""
    app()
