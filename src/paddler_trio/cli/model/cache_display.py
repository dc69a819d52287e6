"""Commands on agents' caches as they go on: bars on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import attrs
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paddler_trio.cli.terminal import printable

BAR_COLUMNS = 20
Json = dict[str, object]


def follow(lines: Iterable[Json], console: Console) -> list[Json]:
    """Show progress until the lines end; returns all others."""
    shown = ProgressTable()
    last = []
    if not console.is_terminal:
        said: dict[str, str] = {}
        for line in lines:
            if "progress" not in line:
                last.append(line)
                continue
            words = shown.words(line)
            if words and said.get(str(line.get("agent"))) != words:
                said[str(line.get("agent"))] = words
                console.print(Text(printable(f"{_label(line)}: {words}")))
        return last
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for line in lines:
            if "progress" in line:
                shown.look(line)
            else:
                shown.end(line)
                last.append(line)
            live.update(shown.table(), refresh=True)
    return last


@attrs.define
class ProgressTable:
    """The newest progress of each agent."""

    _newest: dict[str, Json] = attrs.field(factory=dict, init=False)

    def look(self, line: Json) -> None:
        """A line with progress."""
        self._newest[str(line.get("agent"))] = line

    def end(self, line: Json) -> None:
        """This agent has answered."""
        self._newest.pop(str(line.get("agent")), None)

    def words(self, line: Json) -> str:
        """Return what it does now; the same words as long as it does the same."""
        progress = _progress(line)
        if not progress.get("filename"):
            return ""
        return f"{progress.get('phase')} {file_words(progress)}"

    def table(self) -> Table:
        """A row for each agent that is at work."""
        table = Table.grid(padding=(0, 2))
        for line in self._newest.values():
            progress = _progress(line)
            if not progress.get("filename"):
                continue  # it has just begun
            done, total = progress.get("current_bytes"), progress.get("total_bytes")
            bar: ProgressBar | str = ""
            if isinstance(done, int) and isinstance(total, int) and total:
                bar = ProgressBar(total=total, completed=done, width=BAR_COLUMNS)
            table.add_row(
                Text(printable(_label(line))),
                Text(printable(str(progress.get("filename")))),
                bar,
                Text(printable(speed_words(progress))),
                Text(printable(str(progress.get("phase")))),
            )
        return table


def size_words(size_bytes: object) -> str:
    """``4.7 GB``; decimal, as disks and downloads are counted."""
    if not isinstance(size_bytes, int):
        return "? bytes"
    size = float(size_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def when_words(at_s: object, now_s: float | None = None) -> str:
    """Return how long ago a Unix time is, in one unit."""
    if not isinstance(at_s, int):
        return "?"
    ago_s = max(0.0, (time.time() if now_s is None else now_s) - at_s)
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if ago_s >= 2 * length_s:
            return f"{ago_s / length_s:.0f} {unit} ago"
    return "now" if ago_s < 60 else "1 min ago"


def file_words(progress: Mapping[str, object]) -> str:
    """Return which file it is, of how many; the same words as long as it is the same."""
    total = progress.get("total_bytes")
    size = f" ({size_words(total)})" if isinstance(total, int) else ""
    return f"{progress.get('filename')}{size} from {progress.get('source')}{place_words(progress)}"


def place_words(progress: Mapping[str, object]) -> str:
    """``, file 2 of 3``; empty for a model of one file."""
    count = progress.get("file_count")
    return f", file {progress.get('file_index')} of {count}" if count not in {None, 1} else ""


def speed_words(progress: Mapping[str, object]) -> str:
    """Return how far it is, how fast, and for how long still."""
    done, total = progress.get("current_bytes"), progress.get("total_bytes")
    parts = [f"{size_words(done)} of {size_words(total)}" if total else size_words(done)]
    speed, left_s = progress.get("bytes_per_s"), progress.get("remaining_s")
    if isinstance(speed, int) and speed > 0:
        parts.append(f"{speed / 1e6:.1f} MB/s")
        if isinstance(left_s, int):
            parts.append(f"{left_s // 60}:{left_s % 60:02} left")
    return ", ".join(parts)


def _progress(line: Json) -> Json:
    progress = line.get("progress")
    return progress if isinstance(progress, dict) else {}


def _label(line: Json) -> str:
    return str(line.get("name") or line.get("agent"))
