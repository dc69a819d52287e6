"""``paddler-trio template``: see what a chat template does, without a fleet."""

from __future__ import annotations

import typer

from paddler_trio.cli.template import template_parse, template_render, template_show

template = typer.Typer(
    no_args_is_help=True, help="See what a chat template makes of a conversation."
)
template.command("render")(template_render.render)
template.command("parse")(template_parse.parse)
template.command("show")(template_show.show)
