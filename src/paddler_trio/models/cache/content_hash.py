"""Know what a file's content must hash to, and hash it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import attrs

from paddler_trio.system.durable import leave_page_cache

_CHUNK_BYTES = 4 << 20


class Hash(Protocol):
    """The part of hashlib's objects that is used here."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


@attrs.frozen
class ContentHash:
    """Lower-case hex.

    Args:
      kind: ``sha256`` of a large file; ``git`` is git's SHA-1 of a blob, which has its size in it.
    """

    kind: str
    hex: str

    @classmethod
    def of_etag(cls, etag: str) -> ContentHash | None:
        """Return the hash that a hub's ETag is; None if it is something else."""
        if re.fullmatch(r"[0-9a-f]{64}", etag):
            return cls("sha256", etag)
        if re.fullmatch(r"[0-9a-f]{40}", etag):
            return cls("git", etag)
        return None


def new_hash(kind: str, size_bytes: int) -> Hash:
    """Return an empty hash for a file of ``size_bytes``."""
    if kind == "git":
        return hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)
    return hashlib.sha256()


def hash_of_file(
    path: Path, kind: str, on_chunk: Callable[[int], None] = lambda count: None
) -> str:
    """Hash a whole file, in hex. Blocking; OSError.

    Args:
      on_chunk: called with the number of bytes after each few MiB; may raise.
    """
    with path.open("rb", buffering=0) as file:
        size_bytes = file.seek(0, os.SEEK_END)
        digest = new_hash(kind, size_bytes)
        file.seek(0)
        position = 0
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            # what is read once must not push other models out of the page cache; pages that a
            # process has mapped stay
            leave_page_cache(file.fileno(), position, len(chunk))
            position += len(chunk)
            on_chunk(len(chunk))
    return digest.hexdigest()
