"""Decide which files stay in the store and which go: least recently used first, within a budget.

The order of uses counts and no clock: one that is set anew, by years, changes nothing.

A file is *held* (on the disk, whole or not) or *claimed* (arriving: its full size counts at once).
It is *kept* while it is pinned, desired, in use or arriving; nothing that is kept ever goes. What
is claimed and does not fit, in the budget or on the disk, even without everything that may go, is
refused, and then nothing goes.

Choose the models of a store that go when an operator prunes it, and answer.

As with agents' caches: a model stays if one rule keeps it. One that has a file which is desired,
pinned, in use or arriving stays whatever the rules say, with all of its files.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from typing import Final

import attrs

from paddler_trio.processes.model_store.inventory import (
    StoredFile,
    StoredModel,
    select,
    stored_files,
    stored_models,
)
from paddler_trio.processes.model_store.store_layout import StoreLayout
from paddler_trio.wire.trio.cache_commands import Prune


@attrs.frozen
class Room:
    """There is room, once these are removed."""

    evicted: tuple[str, ...]


@attrs.frozen
class NoRoom:
    """There is none. ``kept_bytes`` are what may not go, beside the file that was to arrive;
    ``disk_lacks_bytes`` is not 0 if the budget would do and the disk would not, whatever went."""

    size_bytes: int
    budget_bytes: int
    kept_bytes: int
    disk_lacks_bytes: int = 0

    def __str__(self) -> str:
        if self.disk_lacks_bytes:
            return (
                f"the file has {self.size_bytes} bytes, and the disk of the model store would lack "
                f"{self.disk_lacks_bytes} of them, whatever went"
            )
        return (
            f"the model store may take {self.budget_bytes} bytes: {self.kept_bytes} of them are "
            f"desired, pinned or in use, and the file has {self.size_bytes}"
        )


@attrs.define
class _Held:
    size_bytes: int
    last_use: int
    """Uses of the store's life are counted."""


@attrs.define(eq=False, repr=False)
class Retention:
    """See the module docstring. Files have keys; see ``layout``."""

    budget_bytes: int
    pinned: set[str] = attrs.field(factory=set)
    desired: frozenset[str] = attrs.field(default=frozenset(), init=False)
    _held: dict[str, _Held] = attrs.field(factory=dict, init=False)
    _claimed: dict[str, int] = attrs.field(factory=dict, init=False)
    _uses: Counter[str] = attrs.field(factory=Counter, init=False)
    _order: Iterator[int] = attrs.field(factory=count, init=False)

    def __repr__(self) -> str:
        return f"<Retention {self.used_bytes} of {self.budget_bytes} bytes>"

    @property
    def used_bytes(self) -> int:
        """The bytes of everything, what is arriving with its full size."""
        return sum(held.size_bytes for held in self._held.values()) + sum(self._claimed.values())

    @property
    def num_held(self) -> int:
        return len(self._held)

    def holds(self, key: str) -> bool:
        """Return whether there is something of it on the disk that nobody is writing to."""
        return key in self._held

    def is_arriving(self, key: str) -> bool:
        return key in self._claimed

    def is_in_use(self, key: str) -> bool:
        return self._uses[key] > 0

    def is_kept(self, key: str) -> bool:
        """Return whether it must not go now."""
        return (
            key in self._claimed or self._uses[key] > 0 or key in self.pinned or key in self.desired
        )

    # ------------------------------------------------------------ what is there

    def hold(self, key: str, size_bytes: int) -> None:
        """Note that a file lies on the disk, whole or not, and nobody writes to it; a claim of it
        has ended, and it was used last now."""
        self._claimed.pop(key, None)
        self._held[key] = _Held(size_bytes, next(self._order))

    def forget(self, key: str) -> None:
        """Forget a file: nothing of it is there, or comes."""
        self._claimed.pop(key, None)
        self._held.pop(key, None)

    def claim(self, key: str, size_bytes: int, *, disk_lacks_bytes: int = 0) -> Room | NoRoom:
        """Claim room for a file that is arriving and will have ``size_bytes``, part of which may
        lie there already. Claim again for another size. What is :class:`NoRoom` stays as it was.

        Args:
          disk_lacks_bytes: so much less than needed is free on the disk, whatever the budget says;
            what may go, goes for it.
        """
        others = [other for other in self._held if other != key and not self.is_kept(other)]
        own = self._claimed.get(key, 0) or self._size(key)
        excess = self.used_bytes - own + size_bytes - self.budget_bytes
        removable = sum(self._held[other].size_bytes for other in others)
        kept_bytes = self.used_bytes - own - removable
        if excess > removable:
            return NoRoom(size_bytes, self.budget_bytes, kept_bytes)
        if disk_lacks_bytes > removable:
            return NoRoom(size_bytes, self.budget_bytes, kept_bytes, disk_lacks_bytes - removable)
        evicted = self._evict(others, max(excess, disk_lacks_bytes))
        self._held.pop(key, None)
        self._claimed[key] = size_bytes
        return Room(evicted)

    def trim(self) -> tuple[str, ...]:
        """Return what goes because the budget is exceeded, as after it was made smaller."""
        others = [other for other in self._held if not self.is_kept(other)]
        return self._evict(others, self.used_bytes - self.budget_bytes)

    # ------------------------------------------------------------- what is wanted

    def use(self, key: str) -> None:
        """Note that somebody reads a file, until the same number of :meth:`release`."""
        self._uses[key] += 1

    def release(self, key: str) -> None:
        """Note that somebody has read a file: it was used last now."""
        self._uses[key] -= 1
        if not self._uses[key]:
            del self._uses[key]
        if key in self._held:
            self._held[key].last_use = next(self._order)

    def desire(self, keys: Collection[str]) -> None:
        """Note that these files are desired, and no others."""
        self.desired = frozenset(keys)

    # -------------------------------------------------------------------- inside

    def _size(self, key: str) -> int:
        return self._held[key].size_bytes if key in self._held else 0

    def _evict(self, candidates: list[str], excess_bytes: int) -> tuple[str, ...]:
        """Take the least recently used ones out until ``excess_bytes`` are free."""
        evicted = []
        for key in sorted(candidates, key=lambda key: self._held[key].last_use):
            if excess_bytes <= 0:
                break
            excess_bytes -= self._held.pop(key).size_bytes
            evicted.append(key)
        return tuple(evicted)


LEFT_GRACE_S: Final = 86_400.0
"""The leftovers of a download or an upload stay for a day: somebody may be about to go on with
it."""


@attrs.frozen
class PrunePlan:
    """The models that go, and how many stay."""

    going: tuple[StoredModel, ...]
    num_kept: int

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All files that go, each once."""
        return tuple({file.key: file for model in self.going for file in model.files}.values())


def planned(layout: StoreLayout, rules: Prune, is_kept: Callable[[str], bool]) -> PrunePlan:
    """Return what ``rules`` do not keep, longest unused first. Blocking; UnknownSourceError."""
    models = stored_models(stored_files(layout))
    named = {m.source for text in rules.sources for m in select(layout, models, text)}
    return prune_plan(models, rules, named, is_kept, time.time())


def prune_plan(
    models: Sequence[StoredModel],
    rules: Prune,
    named: set[str],
    is_kept: Callable[[str], bool],
    now_s: float,
) -> PrunePlan:
    """Return the decision. Pure.

    Args:
      named: sources of the models that the rules name.
      is_kept: whether the file of a key must not go now.
    """
    by_use = sorted(models, key=lambda model: (model.last_use_s, model.source), reverse=True)
    whole = [model for model in by_use if model.is_whole]
    newest = {model.source for model in whole[: rules.newest or 0]}

    def stays(model: StoredModel) -> bool:
        least_s = float(rules.used_within_s or 0)
        if not model.is_whole:
            least_s = max(least_s, LEFT_GRACE_S)
        return (
            model.source in newest
            or model.source in named
            or now_s - model.last_use_s < least_s
            or any(is_kept(file.key) for file in model.files)
        )

    staying = [model for model in by_use if stays(model)]
    needed = {file.key for model in staying for file in model.files}
    going = [
        attrs.evolve(model, files=files)
        for model in reversed(by_use)
        if model not in staying
        and (files := tuple(file for file in model.files if file.key not in needed))
    ]
    return PrunePlan(tuple(going), len(staying))
