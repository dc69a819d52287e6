"""Record who changed what: every management action, in the log, in a ring, and in a file if one is
named.

A record has the time, the name of the key, the address it came from, what was done to what, and how
it ended; for a changed state also digests before and after, or its revision. Each is rendered once,
with bounds for every part, and what looks like a secret is left out. Nothing here waits.

Refusals are kept in a ring of their own, and in file and log only so many of them: somebody who
tries keys pushes out nothing that was done.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from heapq import merge
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.keys.audit_file import AuditFile
from paddler_trio.balancer.keys.audit_trail import DONE
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.scheduler.limits.token_bucket import TokenBucket
from paddler_trio.system.logs.log_ring import redacted

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
