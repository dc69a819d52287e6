"""Read how long an API key is valid and how much it may use: optional fields of a key, all alike in
a key file and in the management API.

    expires               RFC 3339, such as 2026-12-31T23:59:59Z
    requests_per_minute   whole numbers >= 1
    max_concurrent
    tokens_per_day
    tokens_per_month
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.scheduler.limits.key_limits import MOST, NO_LIMITS, KeyLimits
from paddler_trio.wire.scalars import rfc3339

MAX_TTL_S: Final = 100 * 366 * 86_400
TERMS: Final = frozenset({"expires", *MOST})
"""The names of the fields."""
_RFC_3339: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.IGNORECASE
)
_DURATION: Final = re.compile(r"(\d{1,9})([smhdw])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@attrs.frozen
class KeyTerms:
    """``expires`` is the first moment at which the key opens nothing, in UTC; None for never."""

    expires: datetime | None = None
    limits: KeyLimits = NO_LIMITS

    @classmethod
    def read(cls, fields: Mapping[str, object], what: str) -> KeyTerms:
        """Read those of the fields that there are; ConfigurationError names the one that is wrong,
        below ``what``."""
        prefix = f"{what}." if what else ""
        limits = {
            name: check_limit(fields[name], f"{prefix}{name}", most)
            for name, most in MOST.items()
            if fields.get(name) is not None
        }
        expires = fields.get("expires")
        return cls(
            None if expires is None else check_expires(expires, f"{prefix}expires"),
            KeyLimits(**limits),
        )

    def fields(self) -> dict[str, object]:
        """Return those that are set, as JSON."""
        every = self.all_fields()
        return {name: value for name, value in every.items() if value is not None}

    def all_fields(self) -> dict[str, object]:
        """Return all of them; null where nothing is set."""
        return {"expires": self.expires_text, **self.limits.as_json()}

    @property
    def expires_text(self) -> str | None:
        return None if self.expires is None else rfc3339(self.expires)

    def has_expired(self, now: datetime) -> bool:
        return self.expires is not None and now >= self.expires


NO_TERMS: Final = KeyTerms()


def check_expires(value: object, what: str) -> datetime:
    """Return the moment of an RFC 3339 text; ConfigurationError."""
    try:
        if not isinstance(value, str) or not _RFC_3339.fullmatch(value):
            raise ValueError("not RFC 3339")
        return datetime.fromisoformat(value.upper()).astimezone(UTC).replace(microsecond=0)
    except (ValueError, OverflowError) as error:
        shown = repr(value)[:80]
        raise ConfigurationError(
            f"{what} is {shown}, must be a moment such as 2026-12-31T23:59:59Z"
        ) from error


def check_limit(value: object, what: str, most: int) -> int:
    """Return a whole number from 1 to ``most``; ConfigurationError."""
    if type(value) is not int or not 1 <= value <= most:
        shown = repr(value)[:80]
        raise ConfigurationError(f"{what} is {shown}, must be a whole number from 1 to {most}")
    return value


def after(seconds: object, what: str, now: datetime) -> datetime:
    """So long from ``now``; ConfigurationError."""
    return (now + timedelta(seconds=check_limit(seconds, what, MAX_TTL_S))).replace(microsecond=0)


def duration_s(text: str, what: str) -> int:
    """Return the seconds of ``90s``, ``30m``, ``12h``, ``7d`` or ``4w``; ConfigurationError."""
    match = _DURATION.fullmatch(text)
    seconds = 0 if match is None else int(match[1]) * _UNIT_S[match[2]]
    if not 1 <= seconds <= MAX_TTL_S:
        raise ConfigurationError(
            f"{what} is {text[:80]!r}, must be a number with its unit, such as 90s, 30m, 12h, 7d "
            "or 4w, up to a hundred years"
        )
    return seconds
