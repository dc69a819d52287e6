"""``paddler-trio completion``: a script with which a shell completes commands, flags and values.

The script asks ``paddler-trio`` itself at every Tab, with what was typed in the environment; typer
answers before anything is parsed. So a new flag is completed without a new script.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Final

import typer

PROGRAM: Final = "paddler-trio"
QUESTION_VARIABLE: Final = "_PADDLER_TRIO_COMPLETE"


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell that reads the script.")],
) -> None:
    """Print a script for the completion of commands, flags and values with Tab."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    print(
        get_completion_script(prog_name=PROGRAM, complete_var=QUESTION_VARIABLE, shell=shell.value)
    )


def prepare_completion() -> None:
    """Let typer answer if this process was started by such a script."""
    if QUESTION_VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
