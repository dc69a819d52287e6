"""The tokens that keys have used today and this month, kept across restarts in a small file beside
the state.

    {"version": 1, "day": 20780, "tokens": {"alice": 12}, "month": 682, "month_tokens": {"a": 99}}

It is written within seconds of a change, and at the end; a crash forgets what was used since. A
file that cannot be read is no reason not to serve: the log says so, and counting begins anew. One
of an older version of this program has no month.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.fleet.state_database import content, replace
from paddler_trio.balancer.keys.api_keys import MAX_KEYS
from paddler_trio.balancer.keys.key_accounts import KeyAccounts
from paddler_trio.errors import StateDatabaseError
from paddler_trio.scheduler.limits.periods import day_of, month_of
from paddler_trio.system.printed_tree import explain_this_task

log = structlog.get_logger("keys")

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
