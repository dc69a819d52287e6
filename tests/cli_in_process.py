"""Client commands in this process: their output and exit codes without the start of a Python."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

import attrs
import pytest
import typer

from paddler_trio.cli.commands import command_line

COMMAND = typer.main.get_command(command_line())
"""The tree of all commands, made once."""


@attrs.frozen
class Ended:
    """How a command ended, and what it wrote."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def invoke(*words: object, stdin: str = "") -> Ended:
    """Run a command as if in pipes."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as end:
            COMMAND.main([str(word) for word in words], prog_name="paddler-trio")
    code = end.value.code
    return Ended(0 if code is None else int(code), out.getvalue(), err.getvalue())
