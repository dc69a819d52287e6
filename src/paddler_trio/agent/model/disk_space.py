"""Measure how much room there is on the disk of the model cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

log = structlog.get_logger("agent")

DISK_LOOK_S: Final = 10.0


@attrs.define(eq=False)
class DiskSpace:
    """The free space where a folder is, or will be."""

    folder: Path
    free_bytes: int | None = attrs.field(default=None, init=False)
    """The free space as it was last asked; None if it is not known."""

    async def run(self) -> None:
        """Look every ten seconds until cancelled; a disk that does not answer holds up a thread."""
        while True:
            self.free_bytes = await trio.to_thread.run_sync(self._look, abandon_on_cancel=True)
            await trio.sleep(DISK_LOOK_S)

    def _look(self) -> int | None:
        for folder in (self.folder, *self.folder.parents):
            try:
                found = os.statvfs(folder)
            except FileNotFoundError:
                continue  # it is made with the first download
            except OSError as error:
                log.warning("free space unknown", folder=str(folder), reason=error.strerror)
                return None
            return found.f_bavail * found.f_frsize
        return None
