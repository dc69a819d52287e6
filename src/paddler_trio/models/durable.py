"""Files that are whole or not there at all, whatever happens to the machine. All of it blocks."""

from __future__ import annotations

import os
from pathlib import Path


def durably_replace(source: Path, target: Path) -> None:
    """Rename ``source`` to ``target`` once its bytes are on the disk, and the name too."""
    sync(source)
    source.replace(target)
    sync(target.parent)


def write_durably(path: Path, data: bytes) -> None:
    """Write a small file, or replace it, as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name[:200]}.{os.getpid()}.fresh")
    try:
        fresh.write_bytes(data)
        durably_replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
