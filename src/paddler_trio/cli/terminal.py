"""Output of client commands: plain text unless a terminal listens, and one line an error.

Answers go to standard output, everything about them (progress, warnings, errors) to standard
error, so that a pipe carries answers only. Text from models and agents is not ours: its control
characters never reach a terminal.

Standard input, output and error of a process that was started without some of them.

The next socket or file that is opened would get the free number, and whatever is printed or logged
would go into it: into the answer of a client, if it comes to that.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

import typer
from rich.console import Console
from rich.text import Text

from paddler_trio.errors import ConfigurationError, PaddlerError

INTERRUPTED = 130
PLAIN_WIDTH = 10_000
"""Columns of a pipe: nothing is wrapped or cut for a machine."""

_ALLOWED_CONTROLS = "\n\t"
# lone surrogates too, which JSON can name and no output can be written with
_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (
        *range(0x20),
        *range(0x7F, 0xA0),
        *(0x2028, 0x2029),  # they end a line where nobody expects it
        *range(0x202A, 0x202F),  # these turn the direction of whatever follows
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
    )
    if chr(code) not in _ALLOWED_CONTROLS
}


def stdout() -> Console:
    """Return the console for answers."""
    return _console(stderr=False)


def stderr() -> Console:
    """Return the console for progress and warnings."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


def printable(text: str) -> str:
    """Return ``text`` with every control character but tab and line feed, every separator of lines,
    every character that turns the direction of writing and every half of a surrogate pair made
    visible and harmless."""
    return text.translate(_CONTROLS)


def shown_width(*, wide: bool) -> int | None:
    """Return the columns that tables on standard output have; None for as many as they need."""
    console = stdout()
    return None if wide or not console.is_terminal else console.width


def print_lines(lines: Iterable[Text]) -> None:
    """Print lines of a table to standard output, each as it is."""
    console = stdout()
    for line in lines:
        console.print(line, soft_wrap=True)


def print_json(value: object) -> None:
    """One line of JSON on standard output, out at once."""
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
    sys.stdout.flush()


@contextmanager
def one_line_errors(
    exit_code: int = 1, codes: Mapping[type[PaddlerError], int] | None = None
) -> Iterator[None]:
    """Known errors become one line and an exit code, those of ``codes`` their own; Ctrl-C becomes
    130; a closed pipe is quiet."""
    try:
        yield
    except PaddlerError as error:
        print(f"paddler-trio: {printable(str(error))}", file=sys.stderr)
        code = next((c for kind, c in (codes or {}).items() if isinstance(error, kind)), exit_code)
        raise typer.Exit(code) from error
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(INTERRUPTED) from interrupt
    except BrokenPipeError as error:
        # the reader has left; the interpreter's last flush must not complain about it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from error


def require_llama() -> None:
    """A ConfigurationError if llama.cpp is not installed; nothing is imported."""
    if find_spec("llama_cpp") is None:
        raise ConfigurationError(
            "llama.cpp is not installed yet: run `paddler-trio setup`, which builds it for this "
            "machine"
        )


def open_missing_streams() -> None:
    """Open what is missing: a missing input has ended, what is written to a missing output fails,
    and errors that nobody can see are dropped. To be called before anything else is opened."""
    for descriptor, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, flags)  # as the lowest number that is free
            os.set_inheritable(opened, True)
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
"""The command line, or a file that it names, is wrong; typer ends so too."""
ROLLED_BACK: Final = 3
TIMED_OUT: Final = 4
REFUSED: Final = 5
"""By the balancer, of what ``fleet`` and ``rollout`` ask."""


CANNOT_SAY: Final = 2
