"""One TOML file with the settings of the daemons, judged as a whole before any of it is used.

    [balancer]
    inference-addr = "0.0.0.0:8061"
    allowed-host = ["llm.example.org"]

    [agent]
    management-addr = "10.0.0.1:8060"
    slots = 8

A key is a flag without its dashes, and its value is judged by that flag's own type and limits. All
problems are reported together.

The settings of the daemons and their names, found in the commands themselves.

A setting has one name in three spellings: the flag ``--drain-timeout``, the variable
``PADDLER_TRIO_DRAIN_TIMEOUT``, and the key ``drain-timeout`` below ``[balancer]`` or ``[agent]`` of
a file. Nothing here lists them: a new flag of a daemon has the other two by itself.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from paddler_trio.errors import ConfigurationError
from paddler_trio.wire import toml_text

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


MAX_FILE_BYTES: Final = 1024 * 1024
MAX_SHOWN_CHARS: Final = 80
MAX_REASON_CHARS: Final = 300
_INTEGERS: Final = range(-(2**63), 2**63)
_NOISE: Final = re.compile(r"\s+(?:for <class '[\w.]+'>)?")
"""In typer's messages: line ends, and Python's name of a type."""

Value: TypeAlias = bool | int | float | str | list[bool | int | float | str]


@attrs.frozen
class Problem:
    """One entry of a file that no daemon would take.

    Args:
      table: without its brackets; empty for what stands above all tables.
      key: empty for a table as a whole.
      value: as TOML would have it, cut where it is long; empty for a table as a whole.
      reason: the limit, or what to write.
    """

    table: str
    key: str
    value: str
    reason: str

    def __str__(self) -> str:
        table = f"[{self.table}]" if self.table else ""
        entry = f"{self.key} = {self.value}" if self.key else ""
        return f"{' '.join(filter(None, (table, entry)))}: {self.reason}"


@attrs.frozen
class FileSettings:
    """The settings of a file that are right, by daemon and key, and what is wrong."""

    values: Mapping[str, Mapping[str, Value]]
    problems: tuple[Problem, ...]


def read_settings_file(path: Path, root: AnyCommand) -> FileSettings:
    """Read and judge a file; ``root`` is the command ``paddler-trio``.

    Raises:
      ConfigurationError: it cannot be read, is too large, or is not TOML.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigurationError(f"{path} is too large, the limit is {MAX_FILE_BYTES} bytes")
    try:
        document = toml_text.loads(data.decode())
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8: {error}") from error
    except RecursionError:
        raise ConfigurationError(f"{path}: TOML nested too deeply") from None
    except ValueError as error:  # that of TOML, and that of numbers with thousands of digits
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from error
    return judge_settings(document, root)


def judge_settings(document: Mapping[str, object], root: AnyCommand) -> FileSettings:
    """Judge what a file says; pure."""
    known = {daemon: settings_of(daemon_of(root, daemon)) for daemon in DAEMONS}
    values: dict[str, dict[str, Value]] = {}
    problems = []
    for table, entries in document.items():
        if table not in known or not isinstance(entries, dict):
            problems.append(_not_a_table(table, entries, known))
            continue
        values[table] = {}
        context = typer.Context(daemon_of(root, table), info_name=table)
        for key, value in entries.items():
            setting = known[table].get(key)
            reason = (
                _no_such_key(table, key, known)
                if setting is None
                else _value_problem(setting, value, context)
            )
            if reason is None:
                values[table][key] = value
            else:
                problems.append(Problem(table, key[:MAX_SHOWN_CHARS], _shown(value), reason))
    return FileSettings(values, tuple(problems))


def _not_a_table(table: str, value: object, known: Mapping[str, Mapping[str, Setting]]) -> Problem:
    tables = " and ".join(f"[{daemon}]" for daemon in DAEMONS)
    if isinstance(value, dict):
        meant = nearest(table.replace("_", "-"), known)
        hint = f"; [{meant}] may be meant" if meant else ""
        reason = f"no such table, there are {tables}{hint}"
        return Problem(table[:MAX_SHOWN_CHARS], "", "", reason)
    owners = [f"[{daemon}]" for daemon in DAEMONS if table in known[daemon]]
    where = " or ".join(owners) or f"a table, {tables}"
    return Problem("", table[:MAX_SHOWN_CHARS], _shown(value), f"write it below {where}")


def _no_such_key(table: str, key: str, known: Mapping[str, Mapping[str, Setting]]) -> str:
    spelled = key.lower().lstrip("-").replace("_", "-")
    for setting in known[table].values():
        if setting.negation == f"--{spelled}":
            return f"no such setting; write {setting.key} = false"
    for other in DAEMONS:
        if other != table and spelled in known[other] and spelled not in known[table]:
            return f"no such setting; it is one of [{other}]"
    meant = nearest(spelled, known[table])
    hint = f"; {meant} may be meant" if meant else f"; `paddler-trio {table} --help` lists them"
    return f"no such setting{hint}"


def _value_problem(setting: Setting, value: object, context: typer.Context) -> str | None:
    """Why the flag does not take it; None if it does."""
    many = setting.option.multiple
    items = value if isinstance(value, list) else [value]
    if many != isinstance(value, list):
        return f"write an array: [{_shown(value)}]" if many else "write one value, no array"
    for item in items:
        if not isinstance(item, bool | int | float | str):
            return "no setting takes a date, a table or an array of these; a text has quotes"
        if isinstance(item, int) and item not in _INTEGERS:
            return "the number is too large: integers of TOML have 64 bits"
        if isinstance(item, str) and "\0" in item:
            return "the text has a NUL character, which no flag could have"
    # as typed on a command line: what typer makes of other types differs between its versions
    is_flag = setting.option.is_flag
    typed = [item if is_flag and isinstance(item, bool) else str(item) for item in items]
    try:
        result = setting.option.process_value(context, typed if many else typed[0])
    except typer.BadParameter as error:
        return _cut(
            _NOISE.sub(" ", error.message.removeprefix("Value error, ")).rstrip(), MAX_REASON_CHARS
        )
    results = list(result) if isinstance(result, list | tuple) else [result]
    return next(filter(None, map(_type_problem, items, results)), None)


def _type_problem(given: object, read: object) -> str | None:
    """A flag's text is read generously; in TOML a number has no quotes, and 1 is not true."""
    if isinstance(read, bool):
        return None if isinstance(given, bool) else "write true or false"
    if isinstance(read, int | float):
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        return None if is_number else "write a number, without quotes"
    return None if isinstance(given, str) else "write a text, in quotes"


def _shown(value: object) -> str:
    """Return a value as TOML would have it, but for dates and tables."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:  # TOML has hexadecimal numbers of any length; Python writes no such number
        text = "a number of thousands of digits"
    return _cut(text, MAX_SHOWN_CHARS)


def _cut(text: str, limit_chars: int) -> str:
    return text if len(text) <= limit_chars else f"{text[:limit_chars]}…"
