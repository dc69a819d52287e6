"""``paddler-trio config``: judge a file of settings, or show those that would be in force."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import attrs
import typer
from rich.table import Table
from rich.text import Text

from paddler_trio.cli.daemons.effective_settings import EffectiveSetting, effective_settings
from paddler_trio.cli.daemons.options import JsonOption
from paddler_trio.cli.daemons.settings_file import read_settings_file
from paddler_trio.cli.daemons.settings_names import DAEMONS, SETTINGS_FILE_VARIABLE, daemon_of
from paddler_trio.cli.daemons.settings_option import print_problems, whole_command
from paddler_trio.cli.exit_codes import DONE, USAGE
from paddler_trio.cli.terminal import one_line_errors, print_json, printable, stdout

config = typer.Typer(
    no_args_is_help=True, help="Judge a file of settings; show the settings in force."
)


class Daemon(StrEnum):
    balancer = "balancer"
    agent = "agent"


@config.command()
def check(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            envvar=SETTINGS_FILE_VARIABLE, help="TOML file, as for --config of the daemons."
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Judge a file of settings: names, values and limits, all problems at once."""
    with one_line_errors(USAGE):
        settings = read_settings_file(file, whole_command())
    if as_json:
        print_json({"problems": [attrs.asdict(each) for each in settings.problems]})
        raise typer.Exit(USAGE if settings.problems else DONE)
    if settings.problems:
        print_problems(file, settings.problems)
        raise typer.Exit(USAGE)
    counts = (f"[{table}] {len(values)} settings" for table, values in settings.values.items())
    stdout().print(printable(f"{file}: {', '.join(counts) or 'no settings'}"))


@config.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def show(
    context: typer.Context,
    daemon: Annotated[
        Daemon | None,
        typer.Argument(help="Whose settings; flags of it may follow.", show_default="both"),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--config", envvar=SETTINGS_FILE_VARIABLE, help="The daemons' file of settings."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show each setting as the daemon would read it here, and where it comes from."""
    arguments = [*context.args] if file is None else ["--config", str(file), *context.args]
    if daemon is None and context.args:
        raise typer.BadParameter("flags of which one? Write its name first", param_hint="DAEMON")
    whole = whole_command()
    found = {
        name: effective_settings(daemon_of(whole, name), name, arguments, context)
        for name in ([daemon.value] if daemon is not None else DAEMONS)
    }
    if as_json:
        print_json({name: _told(settings) for name, settings in found.items()})
        return
    for name, settings in found.items():
        table = Table("setting", "value", "from", box=None, title=None)
        for each in settings:
            table.add_row(f"{name} {each.key}", Text(printable(each.shown)), Text(each.origin))
        stdout().print(table)


def _told(settings: list[EffectiveSetting]) -> Mapping[str, object]:
    return {
        each.key: {"value": each.value, "source": each.source, "origin": each.origin}
        for each in settings
    }
