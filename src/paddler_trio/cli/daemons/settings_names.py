"""The settings of the daemons and their names, found in the commands themselves.

A setting has one name in three spellings: the flag ``--drain-timeout``, the variable
``PADDLER_TRIO_DRAIN_TIMEOUT``, and the key ``drain-timeout`` below ``[balancer]`` or ``[agent]`` of
a file. Nothing here lists them: a new flag of a daemon has the other two by itself.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from typing import Final, TypeAlias

import attrs
from typer.core import TyperCommand, TyperGroup, TyperOption

PREFIX: Final = "PADDLER_TRIO"
"""Of environment variables."""
DAEMONS: Final = ("balancer", "agent")
"""The commands that take settings, and the tables of a file."""
SETTINGS_FILE: Final = "config"
SETTINGS_FILE_VARIABLE: Final = f"{PREFIX}_CONFIG"
"""The flag that names a file; a file cannot name another one."""

AnyCommand: TypeAlias = TyperCommand | TyperGroup


@attrs.frozen
class Setting:
    """``key`` is the flag without its dashes; ``negation`` is the flag that says no, or empty."""

    key: str
    variable: str
    negation: str
    option: TyperOption

    @property
    def flag(self) -> str:
        return f"--{self.key}"


def key_of(option: TyperOption) -> str:
    """The flag without its dashes; of a pair such as ``--mmap/--no-mmap`` the first."""
    return option.opts[0].removeprefix("--")


def variable_of(key: str) -> str:
    """The variable of the same name."""
    return f"{PREFIX}_{key.upper().replace('-', '_')}"


def settings_of(command: AnyCommand) -> dict[str, Setting]:
    """All settings of a daemon by key, in the order of its help."""
    found = {}
    for option in _options(command):
        key = key_of(option)
        if key != SETTINGS_FILE:
            negation = option.secondary_opts[0] if option.secondary_opts else ""
            (variable,) = _variables(option)
            found[key] = Setting(key, variable, negation, option)
    return found


def daemon_of(root: AnyCommand, name: str) -> AnyCommand:
    """One of ``DAEMONS`` below the command ``paddler-trio``."""
    assert isinstance(root, TyperGroup)
    command = root.commands[name]
    assert isinstance(command, TyperCommand | TyperGroup)
    return command


def known_variables(root: AnyCommand) -> frozenset[str]:
    """Every ``PADDLER_TRIO_…`` that some command reads."""
    return frozenset(
        variable
        for command in _commands(root)
        for option in _options(command)
        for variable in _variables(option)
    )


def unknown_variables(
    environment: Iterable[str], known: Collection[str]
) -> list[tuple[str, str | None]]:
    """Names of variables that have our prefix and that nothing reads, each with the nearest known
    name, if one is near. Their values may be secrets: only names are looked at."""
    ours = sorted(name for name in environment if name.startswith(f"{PREFIX}_"))
    # compared without what they have in common, which makes any two of them alike
    tails = {name.removeprefix(PREFIX): name for name in known}
    unknown = [name for name in ours if name not in known]
    return [(name, tails.get(nearest(name.removeprefix(PREFIX), tails) or "")) for name in unknown]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return what may have been meant by ``name``; None if nothing is like it."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def _commands(command: AnyCommand) -> Iterator[AnyCommand]:
    yield command
    if isinstance(command, TyperGroup):
        for each in command.commands.values():
            assert isinstance(each, TyperCommand | TyperGroup)
            yield from _commands(each)


def _options(command: AnyCommand) -> Iterator[TyperOption]:
    return (each for each in command.params if isinstance(each, TyperOption))


def _variables(option: TyperOption) -> Iterator[str]:
    names = option.envvar or ()
    yield from (names,) if isinstance(names, str) else names
