"""The commands that run a daemon, as typer makes them: every flag is a variable as well.

The name of a variable follows from that of its flag, for each option that typer finds. Typer would
write it beside each flag, which makes the help twice as long; one sentence below the help says the
rule instead. An error about a variable's value does name it, and each names the value, which not
every version of typer does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import typer
from typer.core import TyperOption

from paddler_trio.cli.daemons.settings_file import key_of, variable_of
from paddler_trio.cli.help import CommandWithHelp, GroupWithHelp

EPILOG: Final = (
    "Every flag is also an environment variable (--drain-timeout: PADDLER_TRIO_DRAIN_TIMEOUT) and "
    "a key in the file of --config. A flag counts before a variable, a variable before the file."
)


MAX_VALUE_CHARS: Final = 80
"""Of a value that is refused."""


class DaemonCommand(CommandWithHelp):
    """A daemon without sub-commands."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **{**fields, "epilog": EPILOG})
        _name_variables(self.params)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as every command does; an error names the variable that it is about."""
        return _naming_a_bad_variable(super().parse_args, ctx, args)


NONE_IF_EMPTY: Final = ("--slots=", "--management-addr=")
"""The unit of agents has these of variables with a default: emptied, they leave the value to the
settings file, to a variable of ours, or to what this machine has joined or serves."""


class DaemonGroup(GroupWithHelp):
    """A daemon with sub-commands beside it."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **{**fields, "epilog": EPILOG})
        _name_variables(self.params)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as every command does, without what a unit wrote of an empty variable; see the
        module."""
        args = [each for each in args if each not in NONE_IF_EMPTY]
        return _naming_a_bad_variable(super().parse_args, ctx, args)


def _name_variables(parameters: Iterable[object]) -> None:
    for each in parameters:
        if isinstance(each, TyperOption):
            each.show_envvar = False
            if each.envvar is None:
                each.envvar = variable_of(key_of(each))


def _naming_a_bad_variable(
    parse: Callable[[Any, list[str]], list[str]], context: Any, arguments: list[str]
) -> list[str]:
    try:
        return parse(context, arguments)
    except typer.BadParameter as error:
        option = error.param
        if isinstance(option, TyperOption) and error.param_hint is None:
            source = context.get_parameter_source(option.name)
            if source is not None and source.name == "ENVIRONMENT":
                error.param_hint = f"{option.opts[0]!r} (environment variable {option.envvar!r})"
        error.message += _got(error)
        raise


def _got(error: typer.BadParameter) -> str:
    """The value that was refused, if the message lacks it: newer versions of typer leave that to
    what caused it."""
    problems: Callable[[], list[dict[str, object]]] = getattr(error.__cause__, "errors", list)
    for problem in problems()[:1]:
        value = problem.get("input")
        shown = repr(str(value)[:MAX_VALUE_CHARS])
        if isinstance(value, str | int | float) and shown not in error.message:
            return f", got {shown}"
    return ""
