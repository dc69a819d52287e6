"""A push as it goes on: a bar on a terminal, a line for each step in a pipe, JSON for scripts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import attrs
from rich.console import Console
from rich.live import Live
from rich.text import Text

from paddler_trio.cli.model.cache_display import ProgressTable, size_words
from paddler_trio.cli.terminal import print_json, printable

INTERVAL_S: Final = 0.25


class _Sink(Protocol):
    def look(self, fields: dict[str, object], *, is_step: bool) -> None: ...


@attrs.define
class PushDisplay:
    """Shows at most four times a second, and every step once.

    A step is another file, or something else done with it.
    """

    sink: _Sink
    _step: tuple[str, str] = attrs.field(default=("", ""), init=False)
    _began: tuple[float, int] = attrs.field(default=(0.0, 0), init=False)
    _shown_s: float = attrs.field(default=0.0, init=False)

    def show(self, phase: str, name: str, done_bytes: int, total_bytes: int) -> None:
        """So much of a file is done."""
        now_s = time.monotonic()
        is_step = (phase, name) != self._step
        if is_step:
            self._step, self._began = (phase, name), (now_s, done_bytes)
        elif now_s - self._shown_s < INTERVAL_S and done_bytes < total_bytes:
            return
        self._shown_s = now_s
        began_s, began_bytes = self._began
        speed = (done_bytes - began_bytes) / max(now_s - began_s, 1e-3)
        fields: dict[str, object] = {
            "phase": phase,
            "filename": name,
            "current_bytes": done_bytes,
            "total_bytes": total_bytes,
            "bytes_per_s": int(speed),
            "remaining_s": int((total_bytes - done_bytes) / speed) if speed > 0 else None,
        }
        self.sink.look(fields, is_step=is_step)

    def wait(self, name: str, why: str) -> None:
        """Nothing is done now."""
        self._step = ("waiting", name)
        fields: dict[str, object] = {"phase": why, "filename": name, "current_bytes": 0}
        self.sink.look(fields, is_step=True)

    def end(self) -> None:
        """All is done."""
        self._step = ("", "")


@contextmanager
def push_display(console: Console, *, as_json: bool) -> Iterator[PushDisplay]:
    """The display that fits where the output goes."""
    if as_json:
        yield PushDisplay(_Json())
    elif not console.is_terminal:
        yield PushDisplay(_Lines(console))
    else:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield PushDisplay(_Bar(live))


class _Json:
    def look(self, fields: dict[str, object], *, is_step: bool) -> None:
        print_json({"progress": fields})


@attrs.define
class _Lines:
    console: Console

    def look(self, fields: dict[str, object], *, is_step: bool) -> None:
        if is_step:
            total = fields.get("total_bytes")
            size = f" ({size_words(total)})" if isinstance(total, int) else ""
            words = f"{fields['filename']}{size}: {fields['phase']}"
            self.console.print(Text(printable(words)))


@attrs.define
class _Bar:
    live: Live

    def look(self, fields: dict[str, object], *, is_step: bool) -> None:
        table = ProgressTable()
        table.look({"agent": "push", "progress": fields})
        self.live.update(table.table(), refresh=True)
