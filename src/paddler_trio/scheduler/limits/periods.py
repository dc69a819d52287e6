"""Days and months of UTC, numbered from 1970 on, and what is counted in the one that is now.

A clock that is set back into the period before finds again what was counted there, and one that
comes back finds what came after: a clock that is put right gives no key its budget twice.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Final

import attrs

DAY_S: Final = 86_400
_EPOCH: Final = date(1970, 1, 1).toordinal()
_MOST_S: Final = (date(9999, 1, 1).toordinal() - _EPOCH) * DAY_S


def day_of(unix_s: float) -> int:
    """Return the day since 1970."""
    return int(min(max(unix_s, 0.0), _MOST_S) // DAY_S)


def month_of(day: int) -> int:
    """Return the month since January 1970 in which a day is."""
    when = date.fromordinal(_EPOCH + day)
    return (when.year - 1970) * 12 + when.month - 1


def first_day(month: int) -> int:
    """Return the first day of a month."""
    return date(1970 + month // 12, month % 12 + 1, 1).toordinal() - _EPOCH


def day_text(day: int) -> str:
    """Return a day as ``2026-11-29``."""
    return date.fromordinal(_EPOCH + day).isoformat()


def month_text(month: int) -> str:
    """Return a month as ``2026-11``."""
    return day_text(first_day(month))[:7]


def day_from(text: str) -> int | None:
    """Return the day that a text such as ``2026-11-29`` names; None if it names none."""
    try:
        when = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError:
        return None
    day = when.toordinal() - _EPOCH
    return day if len(text) == 10 and 0 <= day < _MOST_S // DAY_S else None


def month_from(text: str) -> int | None:
    """Return the month that a text such as ``2026-11`` names; None if it names none."""
    day = day_from(f"{text}-01")
    return None if day is None else month_of(day)


@attrs.define
class PeriodCount:
    """See the module docstring."""

    period: int = 0
    count: int = 0
    _other: tuple[int, int] = (0, 0)
    """The period that was left last, and its count."""

    def at(self, period: int) -> int:
        """Go to this period; return what is counted there."""
        if period != self.period:
            left = self.period, self.count
            found = self._other[1] if self._other[0] == period else 0
            self.period, self.count, self._other = period, found, left
        return self.count

    def add(self, period: int, number: int) -> None:
        """Count so many more in this period."""
        self.count = self.at(period) + max(0, number)
