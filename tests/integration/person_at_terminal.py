"""A terminal with somebody who reads its screen and presses keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs
import forked_processes
from forked_processes import ForkedProcess

COLUMNS, LINES = 150, 30
PATIENCE_S = 60.0
LOOK_S = 0.2
"""Between two looks whether it still runs."""
LEFT_SCREEN = b"\x1b[?1049l"
_HOME = "\x1b[H"
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@attrs.define(eq=False)
class Person:
    """``written`` is everything that the command wrote."""

    process: ForkedProcess | subprocess.Popen[bytes]
    _ours: int
    _its: int
    _before: list[object]
    written: bytes = b""

    @property
    def screen(self) -> str:
        """What was drawn last, without colours."""
        text = self.written.decode(errors="replace").replace("\r", "")
        return _CONTROLS.sub("", text.rpartition(_HOME)[2])

    @property
    def lines(self) -> list[str]:
        """What was written, line by line, without colours."""
        return _CONTROLS.sub("", self.written.decode(errors="replace")).splitlines()

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def sees(self, is_it: Callable[[str], bool], what: str) -> str:
        """The first screen from now on that is so; AssertionError if none is."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not is_it(self.screen):
            left_s = give_up_s - time.monotonic()
            assert left_s > 0, f"never seen: {what}; the screen is:\n{self.screen}"
            assert self._read(left_s), f"it ended before {what}; it wrote:\n{self.screen}"
        return self.screen

    def reads(self, text: str) -> str:
        return self.sees(lambda screen: text in screen, text)

    def waits_for_end(self) -> int:
        """The exit code; minus a signal."""
        give_up_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < give_up_s, "it does not end"
            self._read(0.05)
        while self._read(0):  # what it wrote last
            pass
        return self.process.wait()

    @property
    def is_restored(self) -> bool:
        """The terminal is what it was, and shows what it showed."""
        has_left = self.written.rstrip().endswith(LEFT_SCREEN)
        return has_left and termios.tcgetattr(self._its) == self._before

    def _read(self, within_s: float) -> bool:
        """Whether something was written, and more may be."""
        if select.select([self._ours], [], [], min(within_s, LOOK_S))[0]:
            self.written += os.read(self._ours, 65536)
            return True
        return self.process.poll() is None


@contextmanager
def person(
    *arguments: str,
    columns: int = COLUMNS,
    env: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
) -> Iterator[Person]:
    """Somebody in front of a command of ours, or of another one; it has ended when the block is
    left."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES", "NO_COLOR"}}
    with (
        os.fdopen(os.dup(its), "rb") as keys,
        os.fdopen(os.dup(its), "wb") as shown,
    ):
        environment |= {"TERM": "xterm-256color", **(env or {})}
        process: ForkedProcess | subprocess.Popen[bytes]
        if command:
            process = subprocess.Popen(
                command, env=environment, stdin=keys, stdout=shown, stderr=shown
            )
        else:
            process = forked_processes.start(
                "paddler_trio", arguments, env=environment, stdin=keys, stdout=shown, stderr=shown
            )
    try:
        yield Person(process, ours, its, termios.tcgetattr(its))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(ours)
        os.close(its)
