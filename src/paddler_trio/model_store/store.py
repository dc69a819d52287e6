"""The store: its folder, what lies there, and what of it must stay.

The disk holds the files, ``retention`` decides which go. Room is claimed for one file at a time:
what has to go for it is gone when the claim is granted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.http.asgi import HttpProblem
from paddler_trio.model_store.desired_files import desired_files
from paddler_trio.model_store.inventory import (
    StoredFile,
    note_use,
    remove_file,
    size_on_disk,
    stored_files,
)
from paddler_trio.model_store.layout import StoreLayout
from paddler_trio.model_store.retention import NoRoom, Retention
from paddler_trio.models.durable import write_durably
from paddler_trio.wire.paddler.desired_state import DesiredModel

log = structlog.get_logger("store")

MAX_PINS: Final = 10_000
SETTLE_S: Final = 5.0


@attrs.define(eq=False)
class ModelStore:
    """One running store; make it with :meth:`open`."""

    layout: StoreLayout
    retention: Retention
    _desired: tuple[DesiredModel, ...] = attrs.field(default=(), init=False)
    _claims: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """Held while files go for others that arrive."""

    def __repr__(self) -> str:
        return f"<ModelStore {self.layout.root}: {self.retention}>"

    @classmethod
    async def open(cls, layout: StoreLayout, budget_bytes: int) -> ModelStore:
        """Read the folder; OSError."""
        pinned = await trio.to_thread.run_sync(_read_pins, layout)
        store = cls(layout, Retention(budget_bytes, pinned))
        for file in await store.files():
            store.retention.hold(file.key, file.size_bytes, file.last_use_s)
        return store

    @property
    def num_files(self) -> int:
        """That are held."""
        return self.retention.num_held

    async def files(self) -> list[StoredFile]:
        """What lies there now."""
        return await trio.to_thread.run_sync(stored_files, self.layout)

    # ------------------------------------------------------------------- room

    async def claim(self, key: str, size_bytes: int) -> NoRoom | None:
        """Make room for a file that is arriving; None if there is room now. Claim it again for
        another size, and :meth:`settle` it when nothing more is written."""
        async with self._claims:
            short = await trio.to_thread.run_sync(disk_lacks, self.layout, key, size_bytes)
            decision = self.retention.claim(key, size_bytes, disk_lacks_bytes=short)
            if isinstance(decision, NoRoom):
                return decision
            await self._remove(decision.evicted)
            return None

    async def settle(self, key: str) -> None:
        """Nothing is written to it any more: what is there counts from now on."""
        with trio.move_on_after(SETTLE_S, shield=True):
            for each in (key, self.layout.quarantined_key(key)):
                try:
                    size_bytes = await trio.to_thread.run_sync(size_on_disk, self.layout, each)
                except OSError as error:
                    log.error("a file cannot be looked at", key=each, reason=str(error))
                    size_bytes = None
                if size_bytes is None:
                    self.retention.forget(each)
                else:
                    self.retention.hold(each, size_bytes, time.time())
            await self._refresh_desired()

    @asynccontextmanager
    async def used(self, key: str) -> AsyncIterator[None]:
        """While the block lasts the file stays."""
        self.retention.use(key)
        try:
            await trio.to_thread.run_sync(note_use, self.layout.root / key)
            yield
        finally:
            self.retention.release(key, time.time())

    async def remove(self, key: str) -> None:
        """An operator wants it to go; HttpProblem 404 or 409."""
        async with self._claims:
            if not self.retention.holds(key) and not self.retention.is_arriving(key):
                raise HttpProblem(404, f"the store has no {key[:200]!r}")
            if self.retention.is_kept(key):
                why = "pinned" if key in self.retention.pinned else "desired, or in use now"
                raise HttpProblem(409, f"{key[:200]!r} stays: it is {why}")
            self.retention.forget(key)
            await self._remove((key,))

    # ------------------------------------------------------------ what is wanted

    async def desire(self, models: tuple[DesiredModel, ...]) -> None:
        """The files of these models stay, and of no others."""
        self._desired = models
        async with self._claims:
            await self._refresh_desired()
            await self._remove(self.retention.trim())

    async def pin(self, key: str, *, pinned: bool) -> None:
        """The file stays until it is unpinned; HttpProblem if it is not there, or too many are."""
        pins = set(self.retention.pinned)
        if pinned and not self.retention.holds(key) and not self.retention.is_arriving(key):
            raise HttpProblem(404, f"the store has no {key[:200]!r}")
        if pinned and len(pins) >= MAX_PINS:
            raise HttpProblem(409, f"{MAX_PINS} files are pinned, the limit")
        if pinned:
            pins.add(key)
        else:
            pins.discard(key)
        self.retention.pinned = pins
        text = json.dumps(sorted(pins)).encode()
        await trio.to_thread.run_sync(write_durably, self.layout.pins, text)

    # -------------------------------------------------------------------- inside

    async def _refresh_desired(self) -> None:
        keys = await trio.to_thread.run_sync(desired_files, self.layout, self._desired)
        self.retention.desire(keys)

    async def _remove(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            try:
                await trio.to_thread.run_sync(remove_file, self.layout, key)
            except OSError as error:
                log.error("a file of the store cannot be removed", key=key, reason=str(error))
                await self.settle(key)
            else:
                log.info("removed from the store", key=key)


def _read_pins(layout: StoreLayout) -> set[str]:
    try:
        pins = json.loads(layout.pins.read_bytes())
    except FileNotFoundError:
        return set()
    except ValueError:
        pins = None
    if not isinstance(pins, list) or not all(isinstance(key, str) for key in pins):
        raise OSError(0, "it is no list of keys: repair or remove it", str(layout.pins))
    return set(pins)


def disk_lacks(layout: StoreLayout, key: str, size_bytes: int) -> int:
    """How much more than is free this file needs."""
    place = os.statvfs(layout.root)
    needed = size_bytes - (size_on_disk(layout, key) or 0)
    return max(0, needed - place.f_bavail * place.f_frsize)
