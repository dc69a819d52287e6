"""``--help`` in which every flag can be read: its name has a line of its own, its text is below.

typer's own help has a table with a column each for flags, negations, types and texts, and cuts what
its columns have no room for: at 80 columns a third of the flags of `balancer` could not be typed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.core import TyperArgument, TyperCommand, TyperGroup

INDENT: Final = 4
"""Columns of the text below a flag."""


class CommandWithHelp(TyperCommand):
    """A command whose help is whole at any width."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        _print_help(self, ctx)


class GroupWithHelp(TyperGroup):
    """A command with sub-commands, whose help is whole at any width."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        _print_help(self, ctx)


def give_help(app: typer.Typer) -> None:
    """Let all commands of an app print this help, those of its groups too."""
    app.info.cls = app.info.cls or GroupWithHelp
    for command in app.registered_commands:
        if command.cls in (None, TyperCommand):
            command.cls = CommandWithHelp
    for group in app.registered_groups:
        if group.typer_instance is not None:
            give_help(group.typer_instance)


def _print_help(command: TyperCommand | TyperGroup, ctx: Any) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    usage = Text(command.get_usage(ctx), style="bold")
    parts: list[RenderableType] = [Padding(usage, 1)]
    if command.help:
        parts.append(Padding(_flowing(command.help), (0, 1, 1, 1)))
    parts += [_panel(title, Group(*rows)) for title, rows in _sections(command, ctx)]
    if isinstance(command, TyperGroup) and (table := _commands(command, ctx)).row_count:
        parts.append(_panel("Commands", table))
    if command.epilog:
        parts.append(Padding(_flowing(command.epilog), 1))
    console.print(*parts, sep="\n")


def _sections(
    command: TyperCommand | TyperGroup, ctx: Any
) -> Iterator[tuple[str, list[RenderableType]]]:
    """Yield the panels of arguments and flags in their order, those without a name first."""
    sections: dict[str, list[RenderableType]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        is_argument = isinstance(parameter, TyperArgument)
        panel = getattr(parameter, "rich_help_panel", None)
        title = panel or ("Arguments" if is_argument else "Options")
        sections.setdefault(title, []).extend(_rows(*record))
    return ((title, rows) for title, rows in sections.items() if rows)


def _rows(names: str, text: str) -> Iterator[RenderableType]:
    line = Text(overflow="fold")  # it is wrapped between words, and never within a flag
    for number, word in enumerate(names.split(" ")):
        is_name = number == 0 or word.startswith("-")
        line.append(f"{' ' if number else ''}{word}", style="bold cyan" if is_name else "yellow")
    yield line
    if text:
        yield Padding(_flowing(text), (0, 0, 0, INDENT))


def _commands(group: TyperGroup, ctx: Any) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold cyan")
    table.add_column()
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if command is not None and not command.hidden:
            table.add_row(name, _flowing(command.get_short_help_str(limit=1000)))
    return table


def _panel(title: str, content: RenderableType) -> Panel:
    return Panel(content, title=title, title_align="left", border_style="dim")


def _flowing(text: str) -> Text:
    """Return paragraphs without the ends of lines that they have in the source."""
    return Text("\n\n".join(" ".join(part.split()) for part in text.split("\n\n")))
