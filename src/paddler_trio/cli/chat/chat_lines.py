"""Lines that a person types: with readline's keys and history, and blocks of several lines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final

import attrs

from paddler_trio.cli.terminal import printable, stderr

try:
    import readline
except ImportError:  # a build of Python without it: keys are those of the terminal
    _READLINE: ModuleType | None = None
else:
    _READLINE = readline

FENCE: Final = '"""'
"""Begins and ends a block of several lines."""
PROMPT: Final = ">>> "
MORE: Final = "... "
MAX_HISTORY: Final = 1000


def history_file() -> Path:
    """Return where typed lines are kept, as other programs of this user keep theirs."""
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return folder / "paddler-trio" / "chat_history"


@attrs.define(eq=False)
class LineReader:
    """Reads what is typed; a context manager that loads the history and stores it again.

    Args:
      history: the file of it; None for none.
      words: the words that Tab completes at the beginning of a line.
    """

    history: Path | None
    words: Sequence[str] = ()

    def __enter__(self) -> LineReader:
        if _READLINE is not None:
            _READLINE.parse_and_bind("tab: complete")
            _READLINE.set_completer_delims("")
            _READLINE.set_completer(self._completion)
            _READLINE.set_history_length(MAX_HISTORY)
            if self.history is not None:
                with self._told_of_problems():
                    _READLINE.read_history_file(self.history)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if _READLINE is None:
            return
        if self.history is not None:
            with self._told_of_problems():
                self.history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.history.touch(mode=0o600)  # before anything is in it
                _READLINE.write_history_file(self.history)
        _READLINE.set_completer(None)

    def message(self) -> str:
        """Read a line, or a block between two `FENCE`.

        Errors:
          EOFError: there is no more.
          KeyboardInterrupt: what was begun is given up.
        """
        line = input(PROMPT)
        if not line.lstrip().startswith(FENCE):
            return line
        text = line.lstrip().removeprefix(FENCE)
        while not text.rstrip().endswith(FENCE):
            text += "\n" + input(MORE)
        return text.rstrip().removesuffix(FENCE).strip("\n")

    def _completion(self, begun: str, place: int) -> str | None:
        found = [word for word in self.words if word.startswith(begun)] if begun else []
        return found[place] if place < len(found) else None

    @contextmanager
    def _told_of_problems(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            pass  # the first conversation
        except OSError as error:
            stderr().print(printable(f"no history in {self.history}: {error.strerror or error}"))
            self.history = None
