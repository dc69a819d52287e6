"""Count what each API key has used, and whether a request of it may go on, by the key's name.

A key that stays keeps its counts when the keys are read again; one that is made anew under an old
name in between goes on with them. All of it is synchronous.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.scheduler.limits.key_limits import NO_LIMITS
from paddler_trio.scheduler.limits.key_usage import Exceeded, KeyUsage, Left
from paddler_trio.scheduler.limits.periods import day_of, month_of
from paddler_trio.wire.scalars import rfc3339

log = structlog.get_logger("keys")


@attrs.frozen
class Refusal:
    """Why a request does not go on; ``status`` is 401 or 429.

    Args:
      exceeded: the limit that it is about, if it is one.
    """

    status: int
    text: str
    exceeded: Exceeded | None = None


@attrs.define(eq=False)
class Admission:
    """One request that was let in; it counts as under way until :meth:`end`."""

    _usage: KeyUsage
    _is_over: bool = attrs.field(default=False, init=False)

    def end(self) -> None:
        """Safe to repeat."""
        if not self._is_over:
            self._is_over = True
            self._usage.end(trio.current_time())


@attrs.define(eq=False, repr=False)
class KeyAccounts:
    """See the module docstring.

    Args:
      unix_s: the clock by which days begin.
      on_refused: is called with the key whose request was refused at a limit.
    """

    keys: KeyRing
    unix_s: Callable[[], float] = time.time
    on_refused: Callable[[str], None] = lambda name: None
    _usages: dict[str, KeyUsage] = attrs.field(factory=dict, init=False)
    _told: set[tuple[str, str]] = attrs.field(factory=set, init=False)
    """Keys and limits whose refusals are in the log since they last were below it."""

    def __attrs_post_init__(self) -> None:
        self.keys.on_reload(self._forget_revoked)

    def __repr__(self) -> str:
        return f"<KeyAccounts of {len(self._usages)} keys, {self.keys.limited.total()} refused>"

    def begin(self, name: str) -> Admission | Refusal:
        """A request of this key arrives; what is returned has to be ended."""
        key = self.keys.named(name)
        if key is None:
            return Refusal(401, f"the API key {name!r} is revoked")
        if (problem := self.keys.problem_of(key)) is not None:
            return Refusal(401, problem)
        usage = self._usage(name)
        exceeded = usage.begin(key.terms.limits, trio.current_time(), self.unix_s())
        if exceeded is None:
            self._told = {told for told in self._told if told[0] != name} if self._told else set()
            return Admission(usage)
        return self._refused(name, exceeded)

    def more(self, name: str, number: int) -> Refusal | None:
        """A request of this key that was let in has so many more answers made: why they are not, if
        they are not."""
        key = self.keys.named(name)
        if key is None:
            return Refusal(401, f"the API key {name!r} is revoked")
        exceeded = self._usage(name).more(number, key.terms.limits, trio.current_time())
        if exceeded is None:
            return None
        refusal = self._refused(name, exceeded)
        text = (
            f"each of the {number + 1} answers that are asked for is a request, and {refusal.text}"
        )
        return attrs.evolve(refusal, text=text)

    def _refused(self, name: str, exceeded: Exceeded) -> Refusal:
        refused = name, exceeded.limit
        self.keys.limited[refused] += 1
        self.on_refused(name)
        if refused not in self._told:
            self._told.add(refused)
            log.warning(
                "refused: the key is at its limit",
                key=name,
                limit=exceeded.limit,
                allowed=exceeded.allowed,
                retry_after_s=exceeded.retry_after_s,
            )
        return Refusal(429, _sentence(name, exceeded, self.unix_s()), exceeded)

    def left(self, name: str) -> Sequence[Left]:
        """Return what is left of each limit of this key."""
        key = self.keys.named(name)
        limits = NO_LIMITS if key is None else key.terms.limits
        if not limits:
            return ()
        return self._usage(name).left(limits, trio.current_time(), self.unix_s())

    def charge(self, name: str, tokens: int) -> None:
        """A request of this key has used so many tokens."""
        if self.keys.named(name) is not None:
            self._usage(name).charge(tokens, self.unix_s())

    def used(self, name: str) -> Mapping[str, int]:
        """Return what counts now, by the names of the management API."""
        usage = self._usages.get(name, _UNUSED)
        return {
            "requests_last_minute": usage.requests_last_minute(trio.current_time()),
            "concurrent": usage.concurrent,
            "tokens_today": usage.tokens_today(self.unix_s()),
            "tokens_this_month": usage.tokens_this_month(self.unix_s()),
        }

    def tokens_today(self) -> dict[str, int]:
        """Return the tokens of each key that has used any."""
        now_s = self.unix_s()
        counts = {name: usage.tokens_today(now_s) for name, usage in self._usages.items()}
        return {name: tokens for name, tokens in counts.items() if tokens}

    def tokens_this_month(self) -> dict[str, int]:
        """Return the tokens of each key that has used any this month."""
        now_s = self.unix_s()
        counts = {name: usage.tokens_this_month(now_s) for name, usage in self._usages.items()}
        return {name: tokens for name, tokens in counts.items() if tokens}

    def restore(self, today: Mapping[str, int], this_month: Mapping[str, int]) -> None:
        """Count what keys had used before the start; none is counted twice."""
        day = day_of(self.unix_s())
        for name in today.keys() | this_month.keys():
            if self.keys.named(name) is not None:
                usage = self._usage(name)
                usage.days.add(day, today.get(name, 0))
                usage.months.add(month_of(day), this_month.get(name, 0))

    def _usage(self, name: str) -> KeyUsage:
        usage = self._usages.get(name)
        if usage is None:
            usage = self._usages[name] = KeyUsage()
        return usage

    def _forget_revoked(self) -> None:
        names = {key.name for key in self.keys.keys}
        self._usages = {name: usage for name, usage in self._usages.items() if name in names}
        self._told = {told for told in self._told if told[0] in names}


_UNUSED = KeyUsage()
_BUDGETS: Final = frozenset({"tokens_per_day", "tokens_per_month"})


def _sentence(name: str, exceeded: Exceeded, unix_s: float) -> str:
    most, wait_s = exceeded.allowed, exceeded.retry_after_s
    plural = "" if most == 1 else "s"
    what = {
        "requests_per_minute": f"{most} request{plural} in a minute",
        "max_concurrent": f"{most} request{plural} at once",
        "tokens_per_day": f"{most} token{plural} in a day (UTC)",
        "tokens_per_month": f"{most} token{plural} in a month (UTC)",
    }[exceeded.limit]
    opens = ""
    if exceeded.limit in _BUDGETS:
        opens = f": it opens again at {rfc3339(datetime.fromtimestamp(unix_s + wait_s, UTC))}"
    return (
        f"the API key {name!r} is at its limit of {what} ({exceeded.limit}); try again in "
        f"{wait_s} s{opens}"
    )
