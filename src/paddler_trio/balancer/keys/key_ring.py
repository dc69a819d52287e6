"""The keys a running balancer knows: read at the start, read again on SIGHUP, counted by name.

A file that cannot be read again changes nothing: the known keys stay, and the log has the reason.
A scope that was guarded stays guarded for the life of the process.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import attrs
import structlog
import trio

from paddler_trio.balancer.keys.api_keys import KeyFile, KeyScope, StoredKey, read_key_file
from paddler_trio.errors import ConfigurationError
from paddler_trio.wire.scalars import rfc3339

log = structlog.get_logger("keys")


@attrs.define(eq=False)
class KeyRing:
    """See the module docstring. ``requests``, ``limited`` and ``refusals`` are for metrics."""

    path: Path | None = None
    guarded: frozenset[KeyScope] = frozenset()
    now: Callable[[], datetime] = attrs.field(
        default=lambda: datetime.now(UTC), kw_only=True, repr=False
    )
    """The clock by which keys expire."""
    requests: Counter[str] = attrs.field(factory=Counter, init=False)
    """Requests that were let in, by the name of their key."""
    limited: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    """Requests refused at a limit, by the names of key and limit."""
    refusals: int = attrs.field(default=0, init=False)
    _file: KeyFile = attrs.field(factory=KeyFile, repr=False)
    _by_name: dict[str, StoredKey] = attrs.field(init=False, repr=False)
    _watchers: list[Callable[[], None]] = attrs.field(factory=list, init=False, repr=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False, repr=False)
    """Of readings: what was read before a key was revoked must not come in force after it."""

    def __attrs_post_init__(self) -> None:
        self._by_name = {key.name: key for key in self._file.keys}

    @property
    def keys(self) -> tuple[StoredKey, ...]:
        """Return those in force, as the file has them."""
        return self._file.keys

    def on_reload(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` whenever the keys were read again."""
        self._watchers.append(watcher)

    @classmethod
    def read(cls, path: Path | None) -> KeyRing:
        """Return an empty ring that guards nothing without a file.

        ConfigurationError for a file that cannot be read, or that guards no scope: it would protect
        nothing.
        """
        if path is None:
            return cls()
        file = read_key_file(path)
        if not file.guarded:
            raise ConfigurationError(
                f"key file {path} holds no key: make one with `paddler-trio key new`, or leave "
                "--api-key-file out"
            )
        return cls(path, file.guarded, file)

    async def reload(self) -> None:
        """Read the file again, and let what depends on it follow."""
        if self.path is None:
            log.info("nothing to read again: there is no --api-key-file")
            return
        async with self._turn:
            await self._read_again(self.path)

    async def _read_again(self, path: Path) -> None:
        try:
            file = await trio.to_thread.run_sync(read_key_file, path)
        except ConfigurationError as error:
            log.error("keys not read again, the old ones stay", reason=str(error))
            return
        before = {key.name for key in self._file.keys}
        after = {key.name for key in file.keys}
        self._file = file
        self._by_name = {key.name: key for key in file.keys}
        self.guarded |= file.guarded
        log.info(
            "keys read again",
            keys=len(after),
            added=sorted(after - before),
            revoked=sorted(before - after),
        )
        for watcher in self._watchers:
            watcher()

    def find(self, secret: bytes) -> StoredKey | None:
        """Return the stored key of ``secret``, in constant time, also one that has expired; None if
        there is none."""
        return self._file.find(secret)

    def named(self, name: str) -> StoredKey | None:
        """Return the key of this name, also one that has expired."""
        return self._by_name.get(name)

    def problem_of(self, key: StoredKey) -> str | None:
        """Why this key opens nothing any more; None if it does."""
        expires = key.terms.expires
        if expires is None or self.now() < expires:
            return None
        return f"the API key {key.name!r} expired at {rfc3339(expires)}"

    def valid_s(self, key: StoredKey) -> float:
        """Return for how many more seconds the key is valid; infinite without an end."""
        expires = key.terms.expires
        return math.inf if expires is None else (expires - self.now()).total_seconds()
