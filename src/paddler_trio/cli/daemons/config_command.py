"""``paddler-trio config``: judge a file of settings, or show those that would be in force.

The settings that a daemon would start with, and where each comes from: its command reads
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import attrs
import typer
from rich.table import Table
from rich.text import Text

from paddler_trio.cli.client_flags import JsonOption
from paddler_trio.cli.daemons.settings_file import (
    DAEMONS,
    SETTINGS_FILE_VARIABLE,
    AnyCommand,
    daemon_of,
    read_settings_file,
    settings_of,
)
from paddler_trio.cli.daemons.settings_option import FILE_IN_FORCE, print_problems, whole_command
from paddler_trio.cli.terminal import DONE, USAGE, one_line_errors, print_json, printable, stdout

Source: TypeAlias = Literal["flag", "env", "file", "default"]
Value: TypeAlias = bool | int | float | str | list[str] | None
_SOURCES: Final[dict[str, Source]] = {
    "COMMANDLINE": "flag",
    "ENVIRONMENT": "env",
    "DEFAULT_MAP": "file",
}
_PASSWORD: Final = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]*@")


@attrs.frozen
class EffectiveSetting:
    """``value`` is plain; ``origin`` is the source with the name of the variable or of the file."""

    key: str
    value: Value
    source: Source
    origin: str
    unset: str
    """What a value of None means, in words; empty if it just means that there is none."""

    @property
    def shown(self) -> str:
        match self.value:
            case None | []:
                return self.unset or "-"
            case bool():
                return str(self.value).lower()
            case list():
                return ", ".join(self.value)
            case _:
                return str(self.value)


def effective_settings(
    command: AnyCommand, name: str, arguments: Sequence[str], above: typer.Context
) -> list[EffectiveSetting]:
    """Read ``arguments``, the environment and the file that they name as the daemon does.

    Raises:
      typer's usage errors, as the daemon's command would.
    """
    context = command.make_context(name, list(arguments), parent=above.find_root())
    if context.args or getattr(context, "_protected_args", None):
        context.fail("a sub-command has no settings: name flags only")
    file = str(context.meta.get(FILE_IN_FORCE))
    found = []
    for setting in settings_of(command).values():
        asked = context.get_parameter_source(setting.option.name)
        source = _SOURCES.get("" if asked is None else asked.name, "default")
        origins = {"env": setting.variable, "file": file}
        shown = setting.option.show_default
        found.append(
            EffectiveSetting(
                setting.key,
                _plain(context.params[setting.option.name]),
                source,
                origins.get(source, source),
                shown if isinstance(shown, str) else "",
            )
        )
    return found


def _plain(value: object) -> Value:
    """Return a value as JSON has it, without passwords in addresses."""
    match value:
        case Enum():
            return _plain(value.value)
        case None | bool() | int() | float():
            return value
        case list() | tuple():
            return [_masked(str(each)) for each in value]
        case _:
            return _masked(str(value))


def _masked(text: str) -> str:
    return _PASSWORD.sub(r"\1:***@", text)


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
