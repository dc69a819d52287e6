"""The first bytes by which a file is known for a model."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from paddler_trio.net.client.download_errors import NotAModelError, Subject

GGUF_MAGIC: Final = b"GGUF"


def check_magic(first_bytes: bytes, subject: Subject) -> None:
    """NotAModelError unless a GGUF file begins so."""
    if not first_bytes.startswith(GGUF_MAGIC):
        start = bytes(first_bytes[: len(GGUF_MAGIC)])
        raise NotAModelError(subject, f"it is no GGUF file: it begins with {start!r}")


def is_gguf(path: Path) -> bool:
    """Return whether the file begins as a model does; False if it is gone. Blocking, OSError."""
    return read_start(path).startswith(GGUF_MAGIC)


def read_start(path: Path) -> bytes:
    """Return as many bytes as the magic has, fewer of a shorter file. Blocking, OSError."""
    try:
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC))
    except FileNotFoundError:
        return b""
