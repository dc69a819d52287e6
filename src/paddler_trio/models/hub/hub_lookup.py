"""Look up which models repositories of the hub have, for those who choose one: seldom, within
limits.

A lookup asks the configured hub and no other place, with the token of this machine. Its answer is
kept for a minute, whoever asks. Of several who ask for the same, one asks the hub and the others
wait for it; if it leaves, the next one asks.

The models of a repository to choose among: quantisations with their files and sizes.

Names, and which one is the default, are those of ``hub_choice``: each name chooses its own file.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import attrs
import trio

from paddler_trio.errors import ConfigurationError
from paddler_trio.models.hub.hub_choice import (
    choose,
    is_projection,
    named_models,
    part_names,
)
from paddler_trio.models.hub.hub_client import HubListing, list_repository
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.client.download_errors import (
    RequestRejectedError,
    ServerUnreachableError,
    SourceMalformedError,
    Subject,
)
from paddler_trio.net.client.http_client import Timeouts, open_client

MAX_QUANTIZATIONS: Final = 200
"""Listed of one repository; four times what the largest ones have."""
MAX_PROJECTIONS: Final = 50


@attrs.frozen
class ListedFile:
    """``size_bytes``: None if the hub did not say."""

    path: str
    size_bytes: int | None


@attrs.frozen
class Quantization:
    """A model: its file, or all its parts in order.

    Args:
      name: such as ``Q4_K_M``; of a file whose name ends with none, that name.
      is_default: what is taken of the repository if nothing is named.
    """

    name: str
    files: tuple[ListedFile, ...]
    is_default: bool

    @property
    def size_bytes(self) -> int | None:
        """The size of all parts; None unless each is known."""
        sizes = [file.size_bytes for file in self.files if file.size_bytes is not None]
        return sum(sizes) if len(sizes) == len(self.files) else None


@attrs.frozen
class RepositoryModels:
    """The models that a repository has at a commit, in the hub's order."""

    commit: str
    quantizations: tuple[Quantization, ...]
    projections: tuple[ListedFile, ...]


def models_in(listing: HubListing) -> RepositoryModels:
    """Return the models of a listing; one of which parts are missing is none."""
    present = frozenset(listing.files)
    default = choose(listing.files)
    first = None if default is None else default.model
    by_name = dict(islice(named_models(listing.files).items(), MAX_QUANTIZATIONS))
    if first is not None and first not in by_name.values():
        by_name[first] = first
    models = [(name, path, part_names(path)) for name, path in by_name.items()]
    projections = [path for path in listing.files if is_projection(path)]
    return RepositoryModels(
        listing.commit,
        tuple(
            Quantization(name, _listed(parts, listing), path == first)
            for name, path, parts in models
            if present.issuperset(parts)
        ),
        _listed(projections[:MAX_PROJECTIONS], listing),
    )


def _listed(paths: Sequence[str], listing: HubListing) -> tuple[ListedFile, ...]:
    return tuple(ListedFile(path, listing.sizes_bytes.get(path)) for path in paths)


LOOKUP_S: Final = 20.0
"""The time for one lookup, its turn included."""
FRESH_S: Final = 60.0
MAX_LISTING_BYTES: Final = 2 << 20
"""Ten times the listings of the largest repositories of models: decoding holds the interpreter."""
MAX_AT_ONCE: Final = 4
MAX_KEPT: Final = 16
MAX_REVISION_CHARS: Final = 256

Key = tuple[str, str]


@attrs.frozen
class _Kept:
    models: RepositoryModels
    until_s: float


@attrs.define(eq=False)
class HubLookup:
    """Make it inside the trio run; ``settings`` are read anew for each lookup, in a thread."""

    settings: Callable[[], HubSettings] = HubSettings.from_environment
    _kept: OrderedDict[Key, _Kept] = attrs.field(factory=OrderedDict, init=False)
    _asking: dict[Key, trio.Lock] = attrs.field(factory=dict, init=False)
    _places: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(MAX_AT_ONCE), init=False)

    def __repr__(self) -> str:
        return f"<HubLookup: {len(self._kept)} repositories kept, {len(self._asking)} asked for>"

    async def models(self, repo_id: str, revision: str) -> RepositoryModels:
        """Return what the repository has at this revision, at most ``FRESH_S`` old.

        Errors:
          DownloadError: the hub refuses, cannot be asked, or answers something else.
          trio.TooSlowError: there was no answer within ``LOOKUP_S``.
        """
        key = (repo_id, revision)
        if len(revision) > MAX_REVISION_CHARS:
            raise SourceMalformedError(
                Subject(repo_id, is_hub=True),
                f"revision has {len(revision)} characters, the limit is {MAX_REVISION_CHARS}",
            )
        with trio.fail_after(LOOKUP_S):
            lock = self._asking.setdefault(key, trio.Lock())
            try:
                async with lock:
                    return self._known(key) or await self._asked(key)
            finally:
                if not lock.locked() and self._asking.get(key) is lock:
                    del self._asking[key]

    def _known(self, key: Key) -> RepositoryModels | None:
        kept = self._kept.get(key)
        return None if kept is None or trio.current_time() >= kept.until_s else kept.models

    async def _asked(self, key: Key) -> RepositoryModels:
        async with self._places:
            listing = await self._listing(*key)
            models = await trio.to_thread.run_sync(models_in, listing)
        self._kept[key] = _Kept(models, trio.current_time() + FRESH_S)
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return models

    async def _listing(self, repo_id: str, revision: str) -> HubListing:
        subject = Subject(f"{repo_id}/{revision}", is_hub=True)
        try:
            settings, token = await trio.to_thread.run_sync(self._read)
        except ConfigurationError as error:
            raise RequestRejectedError(subject, str(error)) from error
        if settings.offline:
            raise ServerUnreachableError(
                subject, "HF_HUB_OFFLINE is set where the balancer runs: no hub is asked"
            )
        # the deadline of the whole lookup is the one that counts
        async with open_client(Timeouts(connect_s=LOOKUP_S, silence_s=LOOKUP_S)) as client:
            return await list_repository(
                client,
                settings.endpoint,
                repo_id,
                revision,
                token,
                max_bytes=MAX_LISTING_BYTES,
            )

    def _read(self) -> tuple[HubSettings, str | None]:
        settings = self.settings()
        return settings, settings.token()
