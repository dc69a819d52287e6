"""Know what has arrived of a file that is being uploaded: its bytes from the start, without a gap.

The length of the file is how much is here, so there is nothing to keep beside it. After a crash of
the machine some of the bytes may be wrong; the hash finds that when all are here. Blocking.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.models.cache.content_hash import Hash, hash_of_file
from paddler_trio.models.download.partial_file import remove, write_at
from paddler_trio.models.hub.hub_cache import size_of
from paddler_trio.system.durable import durably_replace

EXPIRY_S: Final = 7 * 86_400.0
"""The time that what was left of an upload waits for its client."""
MAX_LEFT: Final = 64
"""Uploads that may be left at a time; the oldest go."""

HASHED_NOW_BYTES: Final = 16 * 1024 * 1024
"""So much from another time is read again at once; more of it when everything is here."""


@attrs.define(eq=False)
class UploadFile:
    """An open upload; close it whatever happens."""

    path: Path
    position: int
    """So many bytes are here."""
    _descriptor: int
    _digest: Hash | None

    @classmethod
    def open(cls, path: Path, start: int) -> UploadFile | None:
        """Go on at byte ``start``, what is behind it is dropped; None if less is here. OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o644)
        try:
            if os.fstat(descriptor).st_size < start:
                os.close(descriptor)
                return None
            os.ftruncate(descriptor, start)
            digest = None
            if start <= HASHED_NOW_BYTES:
                digest = hashlib.sha256(os.pread(descriptor, start, 0))
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, start, descriptor, digest)

    def write(self, pieces: Sequence[bytes]) -> None:
        """Append bytes. OSError."""
        write_at(self._descriptor, self.position, pieces)
        self.position += sum(map(len, pieces))
        if self._digest is not None:
            for piece in pieces:
                self._digest.update(piece)

    def sha256(self, on_chunk: Callable[[int], None]) -> str:
        """Return the SHA-256 of all bytes that are here, in hex; read again if some are from
        another time. OSError."""
        if self._digest is not None:
            return self._digest.hexdigest()
        return hash_of_file(self.path, "sha256", on_chunk)

    def publish(self, target: Path) -> None:
        """Make it ``target``, safe on the disk. OSError."""
        durably_replace(self.path, target)

    def discard(self) -> None:
        """Remove what is here. OSError."""
        remove(self.path)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def here_bytes(path: Path) -> int:
    """Return how much of an upload is here."""
    return size_of(path) or 0


def expired_uploads(folder: Path, being_written: frozenset[str]) -> list[str]:
    """Return the SHA-256 of uploads that nobody went on with for too long, or that are too many.
    OSError.

    Args:
      being_written: the SHA-256 of those that must stay.
    """
    left = []
    for path in folder.glob("*.partial"):
        sha256 = path.name.removesuffix(".partial")
        if sha256 not in being_written:
            left.append((path.stat().st_mtime, sha256))
    left.sort(reverse=True)
    old_s = time.time() - EXPIRY_S
    return [
        sha256
        for place, (modified_s, sha256) in enumerate(left)
        if place >= MAX_LEFT or modified_s < old_s
    ]
