"""Times as operators are sent them: milliseconds of the monotonic clock, and once the wall's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import trio


def ms(seconds: float) -> int:
    """Return a moment or a duration in whole milliseconds."""
    return round(seconds * 1000)


def utc_of(moment_s: float) -> str:
    """Return a moment of Trio's clock as RFC 3339 in UTC, by what the wall's says now."""
    then = datetime.now(UTC) + timedelta(seconds=moment_s - trio.current_time())
    return then.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_ms() -> str:
    """Now, RFC 3339 in UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
