"""The store: its folder, what lies there, and what the fleet wants of it."""

from __future__ import annotations

import attrs
import structlog
import trio

from paddler_trio.model_store.inventory import StoredFile, stored_files
from paddler_trio.model_store.layout import StoreLayout

log = structlog.get_logger("store")


@attrs.define(eq=False)
class ModelStore:
    """One running store.

    Args:
      size_bytes: what it may take of the disk.
    """

    layout: StoreLayout
    size_bytes: int

    def __repr__(self) -> str:
        return f"<ModelStore {self.layout.root}>"

    async def files(self) -> list[StoredFile]:
        """What lies there now."""
        return await trio.to_thread.run_sync(stored_files, self.layout)
