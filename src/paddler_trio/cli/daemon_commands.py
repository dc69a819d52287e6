"""The commands that run a daemon, as typer makes them: every flag is a variable as well.

Typer would name its variable beside each flag, which makes the help twice as long; the names
follow from those of the flags, and one sentence below the help says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup, TyperOption

EPILOG: Final = (
    "Every flag is also an environment variable (--drain-timeout: PADDLER_TRIO_DRAIN_TIMEOUT) and "
    "a key in the file of --config. A flag counts before a variable, a variable before the file."
)


class DaemonCommand(TyperCommand):
    """A daemon without sub-commands."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **{**fields, "epilog": EPILOG})
        _name_no_variables(self.params)


class DaemonGroup(TyperGroup):
    """A daemon with sub-commands beside it."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **{**fields, "epilog": EPILOG})
        _name_no_variables(self.params)


def _name_no_variables(parameters: Iterable[object]) -> None:
    for each in parameters:
        if isinstance(each, TyperOption):
            each.show_envvar = False
