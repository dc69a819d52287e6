"""Count what a store does: requests, bytes, evictions, downloads."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

from paddler_trio.processes.model_store.store_messages import StoreCounts

Found: TypeAlias = Literal["whole", "arriving", "nothing"]
DownloadOutcome: TypeAlias = Literal["done", "failed", "given_up"]


@attrs.define(eq=False)
class StoreCounters:
    """Totals since the process came up; see :class:`StoreCounts`."""

    found: dict[Found, int] = attrs.field(
        factory=lambda: {"whole": 0, "arriving": 0, "nothing": 0}, init=False
    )
    downloads: dict[DownloadOutcome, int] = attrs.field(
        factory=lambda: {"done": 0, "failed": 0, "given_up": 0}, init=False
    )
    fetched_bytes: int = attrs.field(default=0, init=False)
    """The bytes of downloads that are over."""
    pushed_bytes: int = attrs.field(default=0, init=False)
    sent_bytes: int = attrs.field(default=0, init=False)
    evictions: int = attrs.field(default=0, init=False)

    def sent(self, num_bytes: int) -> None:
        """Count so many more bytes of files that are in the kernel's hands, for a client."""
        self.sent_bytes += num_bytes

    def counts(
        self, *, files: int, used_bytes: int, downloads_running: int, arriving_bytes: int
    ) -> StoreCounts:
        """Return all counts as they are now; ``arriving_bytes`` were received by downloads that go
        on."""
        whole, arriving, nothing = self.found.values()
        done, failed, given_up = self.downloads.values()
        return StoreCounts(
            files=files,
            used_bytes=used_bytes,
            found=(whole, arriving, nothing),
            fetched_bytes=self.fetched_bytes + arriving_bytes,
            pushed_bytes=self.pushed_bytes,
            sent_bytes=self.sent_bytes,
            evictions=self.evictions,
            downloads_running=downloads_running,
            downloads=(done, failed, given_up),
        )
