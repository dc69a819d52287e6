"""Count what each API key has used, and whether a request of it may go on, by the key's name.

A key that stays keeps its counts when the keys are read again; one that is made anew under an old
name in between goes on with them. All of it is synchronous.

The tokens that keys have used today and this month, kept across restarts in a small file beside
the state.

    {"version": 1, "day": 20780, "tokens": {"alice": 12}, "month": 682, "month_tokens": {"a": 99}}

It is written within seconds of a change, and at the end; a crash forgets what was used since. A
file that cannot be read is no reason not to serve: the log says so, and counting begins anew. One
of an older version of this program has no month.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.fleet.state_database import content, replace
from paddler_trio.balancer.keys.api_keys import MAX_KEYS
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.errors import StateDatabaseError
from paddler_trio.scheduler.limits.key_limits import NO_LIMITS
from paddler_trio.scheduler.limits.key_usage import Exceeded, KeyUsage, Left
from paddler_trio.scheduler.limits.periods import day_of, month_of
from paddler_trio.system.printed_tree import explain_this_task
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


SUFFIX: Final = ".key-usage"
VERSION: Final = 1
MAX_FILE_BYTES: Final = 262_144
MAX_TOKENS: Final = 2**53
PAUSE_S: Final = 3.0
FINAL_S: Final = 2.0


@attrs.frozen
class KeptTokens:
    """The content of the file: a day and a month since 1970, and the tokens in each, by key."""

    day: int = 0
    tokens: Mapping[str, int] = attrs.field(factory=dict)
    month: int = 0
    month_tokens: Mapping[str, int] = attrs.field(factory=dict)

    @classmethod
    def of(cls, accounts: KeyAccounts) -> KeptTokens:
        """Return what is to be kept now."""
        day = day_of(accounts.unix_s())
        return cls(day, accounts.tokens_today(), month_of(day), accounts.tokens_this_month())

    def render(self) -> bytes:
        """Return the text of the file."""
        return json.dumps({"version": VERSION, **attrs.asdict(self)}).encode()

    @classmethod
    def parse(cls, text: bytes) -> KeptTokens:
        """Read the text of a file; ValueError."""
        value = json.loads(text)
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise ValueError(f"it is no file of version {VERSION}")
        month, month_tokens = value.get("month", 0), value.get("month_tokens", {})
        return cls(*_period(value.get("day"), value.get("tokens")), *_period(month, month_tokens))


def _period(period: object, tokens: object) -> tuple[int, dict[str, int]]:
    if type(period) is not int or not isinstance(tokens, dict) or len(tokens) > MAX_KEYS:
        raise ValueError("it has no periods and tokens")
    if not all(type(count) is int and 0 <= count <= MAX_TOKENS for count in tokens.values()):
        raise ValueError(f"tokens must be whole numbers up to {MAX_TOKENS}")
    return period, tokens


@attrs.define(eq=False, repr=False)
class KeyUsageFile:
    """See the module docstring."""

    path: Path
    accounts: KeyAccounts
    _written: KeptTokens = attrs.field(factory=KeptTokens, init=False)
    problem: str | None = attrs.field(default=None, init=False)
    """Why the last write failed; None if it did not."""

    def __repr__(self) -> str:
        return f"<KeyUsageFile {self.path.name} of {len(self._written.month_tokens)} keys>"

    def load(self) -> None:
        """Charge the keys with what they have used already. It blocks for a small file."""
        try:
            text = content(self.path, limit_bytes=MAX_FILE_BYTES)
            kept = KeptTokens.parse(text) if text.strip() else KeptTokens()
        except (StateDatabaseError, ValueError, RecursionError) as error:
            log.warning("tokens are counted anew", path=str(self.path), reason=str(error))
            return
        day = day_of(self.accounts.unix_s())
        self.accounts.restore(
            kept.tokens if kept.day == day else {},
            kept.month_tokens if kept.month == month_of(day) else {},
        )
        self._written = KeptTokens.of(self.accounts)

    async def run(self) -> None:
        """Write until cancelled, and then once more."""
        explain_this_task(lambda: repr(self))
        try:
            while True:
                await trio.sleep(PAUSE_S)
                await self.write()
        finally:
            with trio.move_on_after(FINAL_S, shield=True):
                await self.write()

    async def write(self) -> None:
        """If anything has changed."""
        kept = KeptTokens.of(self.accounts)
        if kept.month_tokens == self._written.month_tokens and kept.tokens == self._written.tokens:
            return
        try:
            await trio.to_thread.run_sync(replace, self.path, kept.render(), abandon_on_cancel=True)
        except StateDatabaseError as error:
            reason = str(error)
            if reason != self.problem:
                log.error("the tokens that keys have used are not stored", reason=reason)
            self.problem = reason
        else:
            self.problem, self._written = None, kept
