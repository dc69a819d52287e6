"""A file that is on its way into the store: one download for all that wait for it.

The readers of an arrival follow its blocks. It ends with the download; and when nobody has waited
for it for a while, unless it is desired: what is here of it stays for the next time.

A URL may be any, also one that only this machine reaches: what is no GGUF file is not fetched, and
not handed out. Nothing goes from the store for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.models.download.block_plan import BlockPlan
from paddler_trio.models.download.model_download import ModelDownload
from paddler_trio.models.download.transfer import Transfer
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.client.download_errors import (
    CacheBrokenError,
    CacheFullError,
    DownloadError,
    Subject,
    TransferInterruptedError,
)
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.processes.model_store.store import ModelStore
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, UrlModel

log = structlog.get_logger("store")

MAX_ARRIVALS: Final = 32
"""Files at once, four requests each."""
UNWANTED_S: Final = 30.0
"""An agent that asks for the next part of a file is away for much less."""


@attrs.define(eq=False, repr=False)
class Arrival:
    """See the module docstring.

    Args:
      key: of the file in the store.
      size_bytes: None if the source has not announced it yet.
    """

    key: str
    subject: Subject
    size_bytes: int | None
    changes: Changes = attrs.field(factory=Changes, init=False)
    """It changes at each block, and whenever anything below changes."""
    plan: BlockPlan | None = attrs.field(default=None, init=False)
    """None before the source has announced the size."""
    generation: int = attrs.field(default=0, init=False)
    """Another one each time that the file begins anew: its bytes may be others then."""
    path: Path = attrs.field(factory=Path, init=False)
    """The path of the bytes, as long as they arrive."""
    validator: str = attrs.field(default="", init=False)
    """The validator of the source; empty if it has none."""
    outcome: Path | DownloadError | None = attrs.field(default=None, init=False)
    """The whole file, or why it did not come."""
    num_readers: int = attrs.field(default=0, init=False)
    is_given_up: bool = attrs.field(default=False, init=False)
    """It ends because nobody waited; ask again when it has ended."""

    def __repr__(self) -> str:
        how_far = "nothing yet" if self.plan is None else repr(self.plan)
        return f"<Arrival {self.key}: {how_far}, {self.num_readers} readers>"

    @contextmanager
    def read(self) -> Iterator[None]:
        """Note that somebody waits for it while the block lasts."""
        self.num_readers += 1
        self.changes.notify()
        try:
            yield
        finally:
            self.num_readers -= 1
            self.changes.notify()

    def follow(self, transfer: Transfer) -> None:
        """Note that another block is here, or the file begins anew."""
        self.plan, self.path = transfer.plan, transfer.partial.path
        self.validator = transfer.etag
        self.changes.notify()

    def begin_anew(self) -> None:
        """Count no more what is here of it; the partial file is about to be another one."""
        if self.plan is not None:
            self.plan = None
            self.generation += 1
            self.changes.notify()

    def end(self, outcome: Path | DownloadError) -> None:
        self.outcome = outcome
        self.changes.notify()


@attrs.define(eq=False)
class Arrivals:
    """All that is on its way.

    Args:
      settings: of the sources; the caches are the store's.
      nursery: of the downloads.
    """

    store: ModelStore
    settings: HubSettings
    nursery: trio.Nursery
    _by_key: dict[str, Arrival] = attrs.field(factory=dict, init=False)
    _downloads: dict[str, ModelDownload] = attrs.field(factory=dict, init=False)
    """Those that run, by key."""

    @property
    def num_running(self) -> int:
        return len(self._by_key)

    @property
    def received_bytes(self) -> int:
        """The bytes that came from sources by what is on its way now."""
        return sum(download.received_bytes for download in self._downloads.values())

    def find(self, key: str) -> Arrival | None:
        """Return what is on its way under ``key``; None if nothing is."""
        return self._by_key.get(key)

    def listed(self) -> list[dict[str, object]]:
        """Return what is on its way, as plain JSON."""
        return [
            {
                "key": arrival.key,
                "source": arrival.subject.model_path,
                "here_bytes": 0 if arrival.plan is None else arrival.plan.here_bytes,
                "size_bytes": None if arrival.plan is None else arrival.plan.size_bytes,
                "readers": arrival.num_readers,
            }
            for arrival in self._by_key.values()
        ]

    def join(
        self,
        key: str,
        model: HuggingFaceModel | UrlModel,
        subject: Subject,
        size_bytes: int | None = None,
    ) -> Arrival:
        """Return the arrival of this file, begun now unless it is under way; HttpProblem 503 if too
        many others are."""
        arrival = self._by_key.get(key)
        if arrival is None:
            if len(self._by_key) >= MAX_ARRIVALS:
                raise HttpProblem(
                    503,
                    f"{MAX_ARRIVALS} files are on their way into the model store, the limit",
                    [(b"retry-after", b"5")],
                )
            arrival = self._by_key[key] = Arrival(key, subject, size_bytes)
            self.nursery.start_soon(self._run, arrival, model, name=f"arrival {key}")
        return arrival

    async def _run(self, arrival: Arrival, model: HuggingFaceModel | UrlModel) -> None:
        """Run one download; nothing that goes wrong with it leaves this task."""
        nobody = TransferInterruptedError(arrival.subject, "nobody waited for it any more")
        outcome: Path | DownloadError = nobody
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, arrival, nursery.cancel_scope, name="readers")
                outcome = await self._fetch(arrival, model)
                nursery.cancel_scope.cancel(reason="the download has ended")
        finally:
            await self.store.settle(arrival.key)
            del self._by_key[arrival.key]
            self._count(arrival, outcome)
            arrival.end(outcome)

    def _count(self, arrival: Arrival, outcome: Path | DownloadError) -> None:
        counters = self.store.counters
        download = self._downloads.pop(arrival.key, None)
        counters.fetched_bytes += 0 if download is None else download.received_bytes
        if isinstance(outcome, Path):
            counters.downloads["done"] += 1
        else:
            counters.downloads["given_up" if arrival.is_given_up else "failed"] += 1

    async def _fetch(
        self, arrival: Arrival, model: HuggingFaceModel | UrlModel
    ) -> Path | DownloadError:
        download = ModelDownload(
            self.settings,
            lambda progress: None,
            claim=partial(self._claim, arrival.key),
            on_change=arrival.follow,
            on_void=arrival.begin_anew,
        )
        self._downloads[arrival.key] = download
        try:
            if arrival.size_bytes is not None:  # before anything is asked for
                problem = await self.store.claim(arrival.key, arrival.size_bytes)
                if problem is not None:
                    raise CacheFullError(arrival.subject, str(problem))
            return await download.fetch_file(model)
        except DownloadError as error:
            log.warning("arrival failed", key=arrival.key, reason=error.cause)
            return error
        except Exception as error:
            log.exception("arrival failed", key=arrival.key)
            return CacheBrokenError(arrival.subject, f"the store failed: {type(error).__name__}")

    def _claim(self, key: str, subject: Subject, size_bytes: int) -> None:
        """Claim room in the thread of a download."""
        problem = trio.from_thread.run(self.store.claim, key, size_bytes)
        if problem is not None:
            raise CacheFullError(subject, str(problem))

    async def _watch(self, arrival: Arrival, download: trio.CancelScope) -> None:
        """Cancel the download when nobody has waited for it for a while, and nobody desires it."""
        while True:
            ordinal = arrival.changes.ordinal
            if arrival.num_readers or arrival.key in self.store.retention.desired:
                await arrival.changes.wait_beyond(ordinal)
                continue
            with trio.move_on_after(UNWANTED_S) as patience:
                while not arrival.num_readers:
                    ordinal = await arrival.changes.wait_beyond(ordinal)
            if patience.cancelled_caught and arrival.key not in self.store.retention.desired:
                log.info("arrival given up: nobody waits for it", key=arrival.key)
                arrival.is_given_up = True
                download.cancel(reason="nobody waits for it")
                return
