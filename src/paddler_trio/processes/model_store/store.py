"""The store: its folder, what lies there, and what of it must stay.

The disk holds the files, ``retention`` decides which go. Room is claimed for one file at a time:
what has to go for it is gone when the claim is granted.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.models.model_reference import UnknownSourceError
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.processes.model_store.inventory import (
    StoredFile,
    StoredModel,
    note_use,
    remove_file,
    select,
    size_on_disk,
    stored_files,
    stored_models,
)
from paddler_trio.processes.model_store.retention import NoRoom, PrunePlan, Retention, planned
from paddler_trio.processes.model_store.store_layout import StoreLayout, desired_files
from paddler_trio.processes.model_store.store_messages import StoreCounters
from paddler_trio.system.durable import write_durably
from paddler_trio.wire.paddler.desired_state import DesiredModel
from paddler_trio.wire.trio.cache_commands import Prune

log = structlog.get_logger("store")

MAX_PINS: Final = 10_000
SETTLE_S: Final = 5.0


@attrs.frozen
class Pruned:
    """The outcome of a prune. ``problems``: why a file of the plan is still there, by its key."""

    plan: PrunePlan
    problems: dict[str, str]


@attrs.define(eq=False)
class ModelStore:
    """One running store; make it with :meth:`open`."""

    layout: StoreLayout
    retention: Retention
    counters: StoreCounters = attrs.field(factory=StoreCounters, init=False)
    _desired: tuple[DesiredModel, ...] = attrs.field(default=(), init=False)
    _claims: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """Held while files go for others that arrive."""
    _writes: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """The writes of the list of pins: the newest one is written last."""

    def __repr__(self) -> str:
        return f"<ModelStore {self.layout.root}: {self.retention}>"

    @classmethod
    async def open(cls, layout: StoreLayout, budget_bytes: int) -> ModelStore:
        """Read the folder; OSError."""
        pinned = await trio.to_thread.run_sync(_read_pins, layout)
        store = cls(layout, Retention(budget_bytes, pinned))
        for file in sorted(await store.files(), key=lambda file: (file.last_use_s, file.key)):
            store.retention.hold(file.key, file.size_bytes)
        return store

    @property
    def num_files(self) -> int:
        """That are held."""
        return self.retention.num_held

    async def files(self) -> list[StoredFile]:
        """Return the files that lie there now."""
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
            await self._evict(decision.evicted)
            return None

    async def settle(self, key: str) -> None:
        """Note that nothing is written to a file any more: what is there counts from now on."""
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
                    self.retention.hold(each, size_bytes)
            await self._refresh_desired()

    @asynccontextmanager
    async def used(self, key: str) -> AsyncIterator[None]:
        """Keep the file while the block lasts."""
        self.retention.use(key)
        try:
            await trio.to_thread.run_sync(note_use, self.layout.root / key)
            yield
        finally:
            self.retention.release(key)

    async def prune(self, rules: Prune) -> Pruned:
        """Remove the models that ``rules`` do not keep, but none that must stay.

        Errors:
          UnknownSourceError: the rules name what is no source.
        """
        async with self._claims:
            await self._refresh_desired()
            plan = await trio.to_thread.run_sync(
                planned, self.layout, rules, self.retention.is_kept
            )
            problems: dict[str, str] = {}
            for file in () if rules.dry_run else plan.files:
                if self.retention.is_kept(file.key):
                    problems[file.key] = "it has just been asked for"
                    continue
                self.retention.forget(file.key)
                await self._remove((file.key,))
                if self.retention.holds(file.key):
                    problems[file.key] = "it cannot be removed: the log of the balancer says why"
            return Pruned(plan, problems)

    async def remove(self, key: str) -> None:
        """Remove a file that an operator wants to go; HttpProblem 404 or 409."""
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
        """Keep the files of these models, and of no others."""
        self._desired = models
        async with self._claims:
            await self._refresh_desired()
            await self._evict(self.retention.trim())

    async def selected(self, sources: Sequence[str]) -> list[StoredModel]:
        """Return the models that these select, each once; HttpProblem 404 for one that selects
        none, 400 for one that names no source."""

        def look() -> list[StoredModel]:
            models = stored_models(stored_files(self.layout))
            chosen: dict[str, StoredModel] = {}
            for text in sources:
                found = select(self.layout, models, text)
                if not found:
                    raise HttpProblem(
                        404,
                        f"the store has nothing that {text[:200]!r} selects; "
                        "`paddler-trio model list` prints what it has",
                    )
                chosen |= {model.source: model for model in found}
            return list(chosen.values())

        try:
            return await trio.to_thread.run_sync(look)
        except UnknownSourceError as error:
            raise HttpProblem(400, str(error)) from error

    async def pin(self, keys: Collection[str], *, pinned: bool) -> None:
        """Keep these files until they are unpinned; HttpProblem if one is not there, or too many
        are. OSError: the list cannot be written, and all is as before."""
        for key in keys if pinned else ():
            if not self.retention.holds(key) and not self.retention.is_arriving(key):
                raise HttpProblem(404, f"the store has no {key[:200]!r}")
        pins = self.retention.pinned | set(keys) if pinned else self.retention.pinned - set(keys)
        if pinned and len(pins) > MAX_PINS:
            raise HttpProblem(409, f"{len(pins)} files would be pinned, the limit is {MAX_PINS}")
        changed = self.retention.pinned ^ pins
        self.retention.pinned = pins
        async with self._writes:
            text = json.dumps(sorted(self.retention.pinned)).encode()
            try:
                await trio.to_thread.run_sync(write_durably, self.layout.pins, text)
            except OSError:  # the operator is told so, and a restart would forget it
                now = self.retention.pinned
                self.retention.pinned = now - changed if pinned else now | changed
                raise

    # -------------------------------------------------------------------- inside

    async def _refresh_desired(self) -> None:
        keys = await trio.to_thread.run_sync(desired_files, self.layout, self._desired)
        self.retention.desire(keys)

    async def _evict(self, keys: tuple[str, ...]) -> None:
        self.counters.evictions += len(keys)
        await self._remove(keys)

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
    """Return how much more than is free this file needs."""
    place = os.statvfs(layout.root)
    needed = size_bytes - (size_on_disk(layout, key) or 0)
    return max(0, needed - place.f_bavail * place.f_frsize)
