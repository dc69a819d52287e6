"""Record who changed what: every management action, in the log, in a ring, and in a file if one is
named.

A record has the time, the name of the key, the address it came from, what was done to what, and how
it ended; for a changed state also digests before and after, or its revision. Each is rendered once,
with bounds for every part, and what looks like a secret is left out. Nothing here waits.

Refusals are kept in a ring of their own, and in file and log only so many of them: somebody who
tries keys pushes out nothing that was done.

The file of ``--audit-log``: lines of JSON, on the disk before they are forgotten.

A thread appends and syncs; the event loop only puts lines into a bounded list. While the disk is
full or slow they wait there, the newest are dropped when there are too many, and a line says how
many. The file is opened for each batch, so it may be moved away. At ``MAX_FILE_BYTES`` it becomes
``FILE.1`` and older ones move up; ``FILE.4`` is the oldest that is kept.

``GET /api/v2/audit`` on the management port: who changed what.

GET /api/v2/audit?after=SEQ     {"entries": [...], "file": {"path", "dropped", "problem"}}

Oldest first, all that are kept without ``after``; ``file`` is null without ``--audit-log``.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from heapq import merge
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.activity.log_routes import after_of
from paddler_trio.balancer.keys.audit_trail import DONE
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.server.asgi import send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.scheduler.limits.token_bucket import TokenBucket
from paddler_trio.system.logs.log_ring import redacted
from paddler_trio.system.printed_tree import explain_this_task
from paddler_trio.wire.codec import dumps

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
KEPT_FILES: Final = 4
"""Beside the one that grows."""
MAX_PENDING: Final = 10_000
"""Lines, of some 300 bytes."""
RETRY_S: Final = 5.0
FINAL_S: Final = 2.0
"""How long the end of the balancer waits for the last lines."""


@attrs.define(eq=False, repr=False)
class AuditFile:
    """See the module docstring.

    Args:
      path: where the lines go.
      dropped_line: the line that says how many were dropped.
    """

    path: Path
    dropped_line: Callable[[int], bytes]
    dropped: int = attrs.field(default=0, init=False)
    """Lines since the start that never reached the file."""
    problem: str | None = attrs.field(default=None, init=False)
    """Why the last write failed; None if it did not."""
    _pending: list[bytes] = attrs.field(factory=list, init=False)
    """Not on the disk yet."""
    _unsaid: int = attrs.field(default=0, init=False)
    """Dropped lines that no line mentions yet."""
    _has_lines: trio.Event = attrs.field(factory=trio.Event, init=False)
    _one: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    def __repr__(self) -> str:
        state = f"{len(self._pending)} lines to write, {self.dropped} dropped"
        return f"<AuditFile {self.path}: {state}>"

    def check(self) -> None:
        """Raise ConfigurationError if nothing can be written there. It blocks."""
        try:
            os.close(_opened(self.path))
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigurationError(
                f"cannot write the audit log {self.path}: {reason}; give --audit-log a file in a "
                "folder that this user may write to"
            ) from error

    def add(self, line: bytes) -> None:
        """Add one more line, without its end; it waits for nothing."""
        if len(self._pending) >= MAX_PENDING:
            self.dropped += 1
            self._unsaid += 1
            return
        if self._unsaid:
            self._say_what_was_dropped()
        self._pending.append(line)
        self._has_lines.set()

    async def run(self) -> None:
        """Write until cancelled, and what is left then."""
        explain_this_task(lambda: repr(self))
        try:
            while True:
                await self._has_lines.wait()
                await self.write_pending()
                if self.problem is not None:
                    await trio.sleep(RETRY_S)
        finally:
            with trio.move_on_after(FINAL_S, shield=True):
                await self.write_pending()
            if self._pending:
                log.error("audit records are lost", records=len(self._pending), path=self.path.name)

    async def write_pending(self) -> None:
        """Write what waits, now.

        Cancellation: a write in progress goes on in its thread; the next one waits for it.
        """
        if not self._pending:
            return
        self._has_lines = trio.Event()
        problem = await trio.to_thread.run_sync(
            self._append_pending, abandon_on_cancel=True, limiter=self._one
        )
        if problem is not None:
            self._has_lines.set()
            if self.problem is None:
                log.error("the audit log cannot be written", path=str(self.path), reason=problem)
        elif self.problem is not None:
            if self._unsaid:
                self._say_what_was_dropped()
            log.info("the audit log is written again", path=str(self.path), dropped=self.dropped)
        self.problem = problem

    def _say_what_was_dropped(self) -> None:
        self._pending.append(self.dropped_line(self._unsaid))
        self._unsaid = 0
        self._has_lines.set()

    def _append_pending(self) -> str | None:
        """Append in a thread: what it has written is taken off the front of the list, in one
        step."""
        lines = self._pending[:]
        try:
            append_lines(self.path, lines)
        except OSError as error:
            return error.strerror or str(error)
        del self._pending[: len(lines)]
        return None


def append_lines(path: Path, lines: Sequence[bytes]) -> None:
    """Append and sync; OSError, and the file as it was."""
    data = b"".join(line + b"\n" for line in lines)
    if _is_too_long_with(path, len(data)):
        _move_up(path)
    descriptor = _opened(path)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
            data = b"\n" + data  # behind half of a line, which a crash left
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size_bytes)  # no half of a line
            raise
    finally:
        os.close(descriptor)


def _is_too_long_with(path: Path, more_bytes: int) -> bool:
    try:
        size_bytes = path.lstat().st_size
    except FileNotFoundError:
        return False
    return size_bytes > 0 and size_bytes + more_bytes > MAX_FILE_BYTES


def _move_up(path: Path) -> None:
    for number in range(KEPT_FILES, 0, -1):
        older = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number}"))


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "it is no regular file")
    return descriptor


log = structlog.get_logger("audit")

ANONYMOUS: Final = "anonymous"
"""Who did something where no key is asked for."""
MAX_ENTRIES: Final = 1000
MAX_REFUSALS: Final = 200
MAX_TEXT_CHARS: Final = 200
REFUSALS_BURST: Final = 100
REFUSALS_PER_S: Final = 0.1
"""In the file and in the log at its usual level."""
MAX_FIELDS: Final = 8
_NAMED: Final = ("before", "after", "revision")


@attrs.define(eq=False, repr=False)
class AuditLog:
    """An :class:`~paddler_trio.balancer.keys.audit_trail.AuditTrail`; see the module docstring."""

    file: AuditFile | None = None
    seq: int = attrs.field(default=0, init=False)
    """Of the newest record; 0 for none."""
    _done: deque[tuple[int, bytes]] = attrs.field(
        factory=lambda: deque(maxlen=MAX_ENTRIES), init=False
    )
    _refused: deque[tuple[int, bytes]] = attrs.field(
        factory=lambda: deque(maxlen=MAX_REFUSALS), init=False
    )
    _refusals: TokenBucket | None = attrs.field(default=None, init=False)

    @classmethod
    def of(cls, path: Path | None) -> AuditLog:
        """Make a log with a file, if one is named; ConfigurationError if it cannot be written. It
        blocks."""
        if path is None:
            return cls()
        file = AuditFile(path, _dropped_line)
        file.check()
        return cls(file)

    def __repr__(self) -> str:
        return f"<AuditLog of {self.seq} records, {self.file!r}>"

    def record(
        self,
        exchange: Exchange,
        action: str,
        target: str = "",
        *,
        outcome: str = DONE,
        who: str | None = None,
        **fields: object,
    ) -> None:
        """Record that the request of ``exchange`` did this; see ``AuditTrail``."""
        if exchange.recorded is not None:
            exchange.recorded.append(action)
        self.seq += 1
        name = who if who is not None else exchange.identity.key_name or ANONYMOUS
        entry: dict[str, object] = {
            "seq": self.seq,
            "time": _now(),
            "who": _bounded(name),
            "source": _bounded(exchange.client[0]),
            "action": _bounded(action),
            "target": _bounded(target),
            **{name: _bounded(fields.pop(name, None)) for name in _NAMED},
            "outcome": _bounded(outcome),
            "details": {
                key[:MAX_TEXT_CHARS]: _bounded(value)
                for key, value in list(fields.items())[:MAX_FIELDS]
            },
        }
        line = _dumps(entry)
        (self._done if outcome == DONE else self._refused).append((self.seq, line))
        is_kept = outcome == DONE or self._may_refuse()
        if self.file is not None and is_kept:
            self.file.add(line)
        shown = {name: value for name, value in entry.items() if value not in (None, "", {})}
        (log.info if is_kept else log.debug)("audit", **shown)

    def _may_refuse(self) -> bool:
        """File and log have room for another refusal."""
        now_s = trio.current_time()
        if self._refusals is None:
            self._refusals = TokenBucket(REFUSALS_BURST, REFUSALS_PER_S, now_s)
        return self._refusals.take(now_s)

    def after(self, seq: int) -> Sequence[bytes]:
        """Return the JSON of the records that came after this one and are kept, oldest first."""
        return [text for number, text in merge(self._done, self._refused) if number > seq]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _bounded(value: object) -> object:
    match value:
        case None | bool():
            return value
        case int() if abs(value) < 2**53:
            return value
        case float() if math.isfinite(value):
            return value
    text = redacted(value, MAX_TEXT_CHARS)
    return text if text.isprintable() else text.encode("unicode_escape").decode()[:MAX_TEXT_CHARS]


def _dropped_line(count: int) -> bytes:
    return _dumps({"time": _now(), "action": "audit records dropped", "details": {"count": count}})


def _dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "backslashreplace"
    )


@attrs.frozen(eq=False)
class AuditRoutes:
    """The handler of this route."""

    audit: AuditLog

    def add_to(self, routes: Router) -> None:
        """Answer this path too."""
        routes.http("GET", "/api/v2/audit", self._show)

    async def _show(self, exchange: Exchange, params: Params) -> None:
        texts = self.audit.after(after_of(exchange))
        file = self.audit.file
        about = (
            None
            if file is None
            else {"path": str(file.path), "dropped": file.dropped, "problem": file.problem}
        )
        answer = b'{"entries":[%b],"file":%b}' % (b",".join(texts), dumps(about))
        await send_json(exchange.send, 200, answer)
