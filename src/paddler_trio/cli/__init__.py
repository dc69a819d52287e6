"""The ``paddler-trio`` command: one file a sub-command, assembled in ``commands.py``.

What only a daemon needs is imported when a daemon is started: ``--help`` and the client commands
answer at once.
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys

from paddler_trio.cli import completion
from paddler_trio.cli.commands import COMMANDS, command_line, needed_for
from paddler_trio.cli.daemons.paddler_v1_flags import translate
from paddler_trio.cli.terminal import USAGE, open_missing_streams, printable


def main() -> None:
    """Entry of the console script."""
    open_missing_streams()
    try:
        try:
            _run()
        finally:
            sys.stdout.flush()  # what cannot be written is known before the interpreter ends
    except KeyboardInterrupt:  # while the command was being imported; commands answer for the rest
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        # its last flush must not complain about it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:
            words = f"cannot write the output: {error.strerror}"
            print(f"{completion.PROGRAM}: {words}", file=sys.stderr)
        sys.exit(1)


_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EPIPE, errno.EBADF})


def _run() -> None:
    arguments = _arguments_today(sys.argv[1:])
    is_completing = completion.QUESTION_VARIABLE in os.environ
    completion.prepare_completion()
    app = command_line(COMMANDS if is_completing else needed_for(arguments))
    app(arguments, prog_name=completion.PROGRAM)


def _arguments_today(given: list[str]) -> list[str]:
    """Return what a command line means now; one of Paddler before 2.0 is translated, which is
    said."""
    translation = translate(given)
    if translation is None:
        return given
    for word in (*translation.notes, *translation.refusals):
        print(printable(f"{completion.PROGRAM}: Paddler 1.x: {word}"), file=sys.stderr)
    if translation.refusals:
        sys.exit(USAGE)
    today = shlex.join([completion.PROGRAM, *translation.arguments])
    print(printable(f"{completion.PROGRAM}: Paddler 1.x: so this runs: {today}"), file=sys.stderr)
    return [*translation.arguments]
