"""The settings that a daemon would start with, and where each comes from: its command reads
them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal, TypeAlias

import attrs
import typer

from paddler_trio.cli.daemons.settings_names import AnyCommand, settings_of
from paddler_trio.cli.daemons.settings_option import FILE_IN_FORCE

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
