"""The ``paddler-trio`` commands in a text of shell, and whether the command line has them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from cli_in_process import COMMAND

PROGRAM = "paddler-trio"
PLACEHOLDERS = {"…", "..."}
"""Stand for options that are not shown."""
WRAPPERS = {"sudo", "exec", "time", "timeout", "nohup", "then", "do", "until", "while", "if"}
"""Words before a command."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_UsageError: Any = typer.BadParameter.__bases__[0]
_SEPARATOR = re.compile(r"[();|&]+")
_OPERATOR = re.compile(r"[();<>|&]+")


class WrongCommandError(Exception):
    """The command line has no such command, option or argument."""


def commands(text: str) -> Iterator[list[str]]:
    """What stands behind each ``paddler-trio`` in a block, word by word."""
    for tokens in _logical_lines(text):
        for at, token in enumerate(tokens):
            is_program = token == PROGRAM or token.endswith(f"/bin/{PROGRAM}")
            if not is_program or not _is_first(tokens, at):
                continue
            words: list[str] = []
            for word in tokens[at + 1 :]:
                if _OPERATOR.fullmatch(word):
                    break
                words.append(word)
            yield words[:-1] if words[-1:] and words[-1] in PLACEHOLDERS else words


def _is_first(tokens: Sequence[str], at: int) -> bool:
    """Whether a command begins here, and no name of a folder or a process stands here."""
    if at == 0:
        return True
    before = tokens[at - 1]
    return bool(_SEPARATOR.fullmatch(before) or _ASSIGNMENT.match(before) or before in WRAPPERS)


def _logical_lines(text: str) -> Iterator[list[str]]:
    """Lines in words, those that go on put together; ValueError for a quote that never ends."""
    waiting = ""
    for line in text.splitlines():
        waiting += line
        if waiting.endswith("\\"):
            waiting = waiting[:-1] + " "
            continue
        try:
            yield _words(waiting)
        except ValueError:  # a quoted text of several lines
            waiting += "\n"
            continue
        waiting = ""
    if waiting.strip():
        yield _words(waiting)


def _words(line: str) -> list[str]:
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    return [word for word in reader if word != "$"]


def check(words: Sequence[str]) -> None:
    """Return if the command line has this command with these options and arguments.

    What stands behind an option is not judged: files and machines of examples are not here.

    Errors:
      WrongCommandError: it has not.
    """
    try:
        _parse(words)
    except _UsageError as error:
        raise WrongCommandError(f"paddler-trio {shlex.join(words)}: {error.message}") from error


def _parse(words: Sequence[str]) -> None:
    command: Any = COMMAND
    context = typer.Context(command, info_name=PROGRAM, **command.context_settings)
    rest = list(words)
    while True:
        values, rest, _ = command.make_parser(context).parse_args(rest)
        if not hasattr(command, "commands") or (not rest and command.invoke_without_command):
            break
        if not rest:
            raise _UsageError("needs a sub-command")
        name, *rest = rest
        if name not in command.commands:
            raise _UsageError(f"no command {name!r}")
        command = command.commands[name]
        context = typer.Context(command, parent=context, info_name=name, **command.context_settings)
    if rest and not context.allow_extra_args:
        raise _UsageError(f"{shlex.join(rest)} is too much")
    for param in command.params:
        given = values.get(param.name)
        is_missing = given is None or given == () or "UNSET" in repr(given)
        if is_missing and param.required and not param.envvar:
            raise _UsageError(f"needs {param.name}")
