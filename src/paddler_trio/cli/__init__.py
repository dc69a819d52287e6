"""The ``paddler-trio`` command: one file a sub-command, assembled here."""

from __future__ import annotations

import typer

from paddler_trio.cli.agent import agent
from paddler_trio.cli.balancer import balancer
from paddler_trio.cli.demo import demo
from paddler_trio.cli.doctor import doctor

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
app.command()(demo)
app.command()(doctor)


def main() -> None:
    """Entry of the console script."""
    app()
