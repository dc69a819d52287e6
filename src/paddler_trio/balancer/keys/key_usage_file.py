"""The tokens that keys have used today, kept across restarts in a small file beside the state.

    {"version": 1, "day": 20780, "tokens": {"alice": 1234}}

It is written when something changed, twice a minute at most, and at the end; a crash forgets what
was used since. A file that cannot be read is no reason not to serve: the log says so, and counting
begins anew.
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
from paddler_trio.scheduler.limits.key_usage import DAY_S
from paddler_trio.system.printed_tree import explain_this_task

log = structlog.get_logger("keys")

SUFFIX: Final = ".key-usage"
VERSION: Final = 1
MAX_FILE_BYTES: Final = 262_144
MAX_TOKENS: Final = 2**53
PAUSE_S: Final = 30.0
FINAL_S: Final = 2.0


@attrs.define(eq=False, repr=False)
class KeyUsageFile:
    """See the module docstring."""

    path: Path
    accounts: KeyAccounts
    _written: Mapping[str, int] = attrs.field(factory=dict, init=False)
    _problem: str | None = attrs.field(default=None, init=False)

    def __repr__(self) -> str:
        return f"<KeyUsageFile {self.path.name} of {len(self._written)} keys>"

    def load(self) -> None:
        """Charge the keys with what they have used today. It blocks for a small file."""
        try:
            text = content(self.path, limit_bytes=MAX_FILE_BYTES)
            day, tokens = _parsed(text) if text.strip() else (0, {})
        except (StateDatabaseError, ValueError, RecursionError) as error:
            log.warning("tokens of today are counted anew", path=str(self.path), reason=str(error))
            return
        if day == int(self.accounts.unix_s() // DAY_S):
            for name, count in tokens.items():
                self.accounts.charge(name, count)
            self._written = self.accounts.tokens_today()

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
        tokens = self.accounts.tokens_today()
        if tokens == self._written:
            return
        day = int(self.accounts.unix_s() // DAY_S)
        text = json.dumps({"version": VERSION, "day": day, "tokens": tokens}).encode()
        try:
            await trio.to_thread.run_sync(replace, self.path, text, abandon_on_cancel=True)
        except StateDatabaseError as error:
            reason = str(error)
            if reason != self._problem:
                log.error("tokens of today are not stored", reason=reason)
            self._problem = reason
        else:
            self._problem, self._written = None, tokens


def _parsed(text: bytes) -> tuple[int, dict[str, int]]:
    """Return the day and the tokens; ValueError."""
    value = json.loads(text)
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise ValueError(f"it is no file of version {VERSION}")
    day, tokens = value.get("day"), value.get("tokens")
    if type(day) is not int or not isinstance(tokens, dict) or len(tokens) > MAX_KEYS:
        raise ValueError("it has no day and tokens")
    if not all(type(count) is int and 0 <= count <= MAX_TOKENS for count in tokens.values()):
        raise ValueError(f"tokens must be whole numbers up to {MAX_TOKENS}")
    return day, tokens
