"""A file that a command is given: read whole, byte for byte, and no more of it than it may have."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import typer

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""As much as a request may have, images in its messages included."""
STANDARD_INPUT: Final = "-"


def bytes_of(file: Path, hint: str, *, may_be_stdin: bool = False) -> bytes:
    """Return what is in a file, ``-`` for standard input where that may be.

    Raises:
      typer.BadParameter: it cannot be read, or is too large.
    """
    is_stdin = may_be_stdin and str(file) == STANDARD_INPUT
    try:
        if is_stdin:
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with file.open("rb") as opened:
                data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint=hint) from error
    if len(data) > MAX_FILE_BYTES:
        raise typer.BadParameter(
            f"{file} is too large, the limit is {MAX_FILE_BYTES} bytes", param_hint=hint
        )
    return data


def text_of_file(file: Path, hint: str, *, may_be_stdin: bool = False) -> str:
    """Return the text of a file. Line ends stay: they are part of a template. Errors are the same,
    and for what is not UTF-8."""
    try:
        return bytes_of(file, hint, may_be_stdin=may_be_stdin).decode()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file}: it is not UTF-8: {error}", param_hint=hint) from error
