"""What a file's content must hash to, and hashing it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Protocol

import attrs

_CHUNK_BYTES = 4 << 20


class Hash(Protocol):
    """The part of hashlib's objects that is used here."""

    def update(self, data: bytes, /) -> None: ...

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
        """The hash that a hub's ETag is; None if it is something else."""
        if re.fullmatch(r"[0-9a-f]{64}", etag):
            return cls("sha256", etag)
        if re.fullmatch(r"[0-9a-f]{40}", etag):
            return cls("git", etag)
        return None


def new_hash(kind: str, size_bytes: int) -> Hash:
    """An empty hash for a file of ``size_bytes``."""
    if kind == "git":
        return hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)
    return hashlib.sha256()


def hash_of_file(path: Path, kind: str) -> str:
    """Hash a whole file, in hex. Blocking; OSError."""
    with path.open("rb") as file:
        file.seek(0, 2)
        digest = new_hash(kind, file.tell())
        file.seek(0)
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
