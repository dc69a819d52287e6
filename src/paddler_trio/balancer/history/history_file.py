"""The file of the history: SQLite beside the state, which threads read and write.

    series  id, kind, name
    sample  step, start, series, numbers, levels, latencies    one row for each step of time
    usage   day, key, user, model, numbers                     one row for each day

Only what came since the last time is written, and added to what is there: in every step of time at
once. So rows need not be put together later, a clock that is set back adds to rows of before, and
two processes may write in turn, as while one takes over from the other. A process that is killed
loses what it has not written yet, and nothing else: SQLite's log makes each write whole.

A file that is damaged, or is none of SQLite's, is set aside as ``FILE.corrupt``, and a new one is
begun. All of it blocks: call it in a thread, one at a time.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.errors import PaddlerError
from paddler_trio.scheduler.limits.periods import DAY_S, month_of
from paddler_trio.scheduler.metering.latency_histogram import LatencyHistogram
from paddler_trio.scheduler.metering.time_samples import LATENCIES, LEVELS, NUMBERS, Kind, Sample
from paddler_trio.scheduler.metering.time_steps import STEPS, USAGE_KEPT_DAYS
from paddler_trio.scheduler.metering.usage import UsageCount, UsageKey

SUFFIX: Final = ".history.db"
CORRUPT: Final = ".corrupt"
VERSION: Final = 1
PAGE_BYTES: Final = 4096
BUSY_S: Final = 2.0
"""How long a write waits for that of another process."""
FULL_SHARE: Final = 0.9
"""Of what the file may have: from there on the oldest rows go."""
PRUNED_SHARE: Final = 0.1
"""Of the rows of a step that go at a time."""
_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_COUNTS: Final = tuple(field.name for field in attrs.fields(UsageCount))
_ADDED: Final = ", ".join(
    (
        *(f"{name} = {name} + excluded.{name}" for name in NUMBERS),
        *(f"{name} = max({name}, excluded.{name})" for name in LEVELS),
        *(f"{name} = added({name}, excluded.{name})" for name in LATENCIES),
    )
)
_COLUMNS: Final = (*NUMBERS, *LEVELS, *LATENCIES)
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, UNIQUE (kind, name)
);
CREATE TABLE IF NOT EXISTS sample (
    step INTEGER, start INTEGER, series INTEGER,
    {", ".join(f"{name} INTEGER NOT NULL" for name in (*NUMBERS, *LEVELS))},
    {", ".join(f"{name} BLOB NOT NULL" for name in LATENCIES)},
    PRIMARY KEY (step, start, series)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage (
    day INTEGER, key TEXT, user TEXT, model TEXT,
    {", ".join(f"{name} INTEGER NOT NULL" for name in _COUNTS)},
    PRIMARY KEY (day, key, user, model)
) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
"""
_PUT_SAMPLE: Final = (
    f"INSERT INTO sample (step, start, series, {', '.join(_COLUMNS)}) "  # noqa: S608  # our names
    f"VALUES ({', '.join('?' * (3 + len(_COLUMNS)))}) ON CONFLICT DO UPDATE SET {_ADDED}"
)
_PUT_USAGE: Final = (
    f"INSERT INTO usage (day, key, user, model, {', '.join(_COUNTS)}) "  # noqa: S608  # our names
    f"VALUES ({', '.join('?' * (4 + len(_COUNTS)))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(
        f"{name} = max({name}, excluded.{name})"
        if name == "last_s"
        else f"{name} = {name} + excluded.{name}"
        for name in _COUNTS
    )
)


class HistoryError(PaddlerError):
    """The history cannot be read or written now; the text says why."""


@attrs.frozen
class SeriesKey:
    """``start`` is the beginning of a step of the finest kind, in seconds of Unix."""

    start: int
    kind: Kind
    name: str


@attrs.define(eq=False, repr=False)
class HistoryFile:
    """See the module docstring.

    Args:
      path: of the file; None keeps it in memory.
      limit_bytes: how large it may become.
    """

    path: Path | None
    limit_bytes: int
    set_aside: Path | None = attrs.field(default=None, init=False)
    """Where a file is that was damaged, until somebody takes it away."""
    _connection: sqlite3.Connection | None = attrs.field(default=None, init=False)
    _inode: tuple[int, int] = attrs.field(default=(0, 0), init=False)
    _purged_at: int = attrs.field(default=0, init=False)
    _swept_at: int = attrs.field(default=0, init=False)

    def __repr__(self) -> str:
        return f"<HistoryFile {self.path or 'in memory'}>"

    @contextmanager
    def using(self) -> Iterator[sqlite3.Connection]:
        """Open the file if need be; HistoryError for whatever SQLite says of it within the block.

        A block that finds it damaged fails, and the next one has a new file.
        """
        try:
            yield self._opened()
        except sqlite3.Error as error:
            reason = str(error)
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                self._set_aside()
                reason = f"it was damaged ({reason}) and is set aside as {self.set_aside}"
            raise HistoryError(reason) from error
        except OSError as error:
            raise HistoryError(error.strerror or str(error)) from error
        except ValueError as error:
            raise HistoryError(f"a row is damaged: {error}") from error

    def close(self) -> None:
        """Close it; what is read or written next opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def write(
        self,
        samples: Mapping[SeriesKey, Sample],
        usage: Mapping[UsageKey, UsageCount],
        now: int,
    ) -> None:
        """Add all of it, or nothing. HistoryError."""
        with self.using() as database:
            self._look_aside()
            database.execute("BEGIN IMMEDIATE")
            try:
                named: set[tuple[str, str]] = {(each.kind, each.name) for each in samples}
                series = {of: _series_id(database, *of) for of in named}
                database.executemany(
                    _PUT_SAMPLE,
                    (
                        (step_s, start, series[kind, name], *values)
                        for step_s, start, kind, name, values in _in_steps(samples)
                    ),
                )
                database.executemany(
                    _PUT_USAGE, ((*key, *attrs.astuple(count)) for key, count in usage.items())
                )
                self._purge(database, now)
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    # ------------------------------------------------------------- private

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and self._is_another_file():
            self.close()
        if self._connection is None:
            try:
                self._connection = self._open()
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode & 0xFF not in _DAMAGED:
                    raise
                self._set_aside()
                self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        if self.path is not None:
            _make(self.path)
            status = self.path.stat()
            self._inode = status.st_dev, status.st_ino
        database = sqlite3.connect(
            self.path or ":memory:",
            timeout=BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise OSError(
                    None,
                    f"{self.path} was written by a newer version of this program: move it away, "
                    "or use that version",
                )
            database.execute("PRAGMA journal_mode = WAL").fetchone()
            database.execute("PRAGMA synchronous = NORMAL")
            with closing(database.execute("PRAGMA quick_check(1)")) as check:
                if (found := check.fetchone()) != ("ok",):
                    damaged = sqlite3.DatabaseError(str(found))
                    damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                    raise damaged
            database.execute(f"PRAGMA max_page_count = {max(64, self.limit_bytes // PAGE_BYTES)}")
            database.create_function("added", 2, _added, deterministic=True)
            database.create_function("month_of", 1, month_of, deterministic=True)
            database.executescript(_SCHEMA)
        except BaseException:
            database.close()
            raise
        return database

    def _is_another_file(self) -> bool:
        """Return whether somebody has moved the file away, or put another one in its place."""
        if self.path is None:
            return False
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return True
        return (status.st_dev, status.st_ino) != self._inode

    def _set_aside(self) -> None:
        self.close()
        if self.path is not None and not self._is_another_file():
            aside = self.path.with_name(self.path.name + CORRUPT)
            self.path.replace(aside)
            for more in ("-wal", "-shm"):
                self.path.with_name(self.path.name + more).unlink(missing_ok=True)
            self._look_aside()

    def _look_aside(self) -> None:
        if self.path is not None:
            aside = self.path.with_name(self.path.name + CORRUPT)
            self.set_aside = aside if aside.exists() else None

    def _purge(self, database: sqlite3.Connection, now: int) -> None:
        """Delete what is too old, once a minute, and the oldest rows while the file is too full:
        the finest first, and what was used last."""
        if abs(now - self._purged_at) >= 60:
            self._purged_at = now
            for step in STEPS:
                database.execute(
                    "DELETE FROM sample WHERE step = ? AND start < ?",
                    (step.step_s, now - step.kept_s),
                )
            database.execute("DELETE FROM usage WHERE day < ?", (now // DAY_S - USAGE_KEPT_DAYS,))
        if abs(now - self._swept_at) >= 3600:
            self._swept_at = now
            database.execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM sample)")
        for step in STEPS:
            if not self._is_full(database):
                return
            _delete_oldest(database, step.step_s)
        if self._is_full(database):
            database.execute("DELETE FROM usage WHERE day = (SELECT min(day) FROM usage)")

    def _is_full(self, database: sqlite3.Connection) -> bool:
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        (free,) = database.execute("PRAGMA freelist_count").fetchone()
        return bool((pages - free) * PAGE_BYTES > self.limit_bytes * FULL_SHARE)


def _make(path: Path) -> None:
    """Make the file for this user alone, if there is none; OSError for what is no regular file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(None, f"{path} is no regular file")
    finally:
        os.close(descriptor)


def _series_id(database: sqlite3.Connection, kind: str, name: str) -> int:
    database.execute("INSERT OR IGNORE INTO series (kind, name) VALUES (?, ?)", (kind, name))
    found = database.execute("SELECT id FROM series WHERE kind = ? AND name = ?", (kind, name))
    (number,) = found.fetchone()
    assert isinstance(number, int)
    return number


def _in_steps(
    samples: Mapping[SeriesKey, Sample],
) -> Iterator[tuple[int, int, str, str, tuple[int | bytes, ...]]]:
    """Yield the rows of all steps: step, start, kind, name and values. What is one piece of time in
    the finest step is mostly one in the others too, and packed once."""
    pieces: dict[tuple[int, int, Kind, str], list[SeriesKey]] = {}
    for key in samples:
        for step in STEPS:
            at = step.step_s, key.start - key.start % step.step_s, key.kind, key.name
            pieces.setdefault(at, []).append(key)
    packed: dict[SeriesKey, tuple[int | bytes, ...]] = {}
    for at, keys in pieces.items():
        if len(keys) == 1:
            (key,) = keys
            values = packed.get(key)
            if values is None:
                values = packed[key] = _values(samples[key])
        else:
            together = Sample()
            for key in keys:
                together.include(samples[key])
            values = _values(together)
        yield (*at, values)


def _values(sample: Sample) -> tuple[int | bytes, ...]:
    return (
        *(getattr(sample, name) for name in (*NUMBERS, *LEVELS)),
        *(getattr(sample, name).pack() for name in LATENCIES),
    )


def _added(one: bytes, other: bytes) -> bytes:
    if not one or not other:
        return one or other
    try:
        histogram = LatencyHistogram.unpack(one)
    except ValueError:  # what is damaged may not keep out what comes
        return other
    histogram.include(LatencyHistogram.unpack(other))
    return histogram.pack()


def _delete_oldest(database: sqlite3.Connection, step_s: int) -> None:
    (least, most) = database.execute(
        "SELECT min(start), max(start) FROM sample WHERE step = ?", (step_s,)
    ).fetchone()
    if least is not None:
        until = least + max(step_s, int((most - least) * PRUNED_SHARE))
        database.execute("DELETE FROM sample WHERE step = ? AND start < ?", (step_s, until))
