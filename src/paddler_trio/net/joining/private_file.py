"""Files that hold secrets or their hashes: read whole and bounded, replaced whole, mode 0600."""

from __future__ import annotations

import os
from pathlib import Path

from paddler_trio.errors import ConfigurationError
from paddler_trio.system.durable import replace_whole, sweep


def read_private(path: Path, *, limit_bytes: int) -> bytes | None:
    """Return the file's content, or None if there is no file; raise ConfigurationError if it cannot
    be read or is too long.
    """
    sweep(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(limit_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > limit_bytes:
        raise ConfigurationError(f"{path} has more than {limit_bytes} bytes")
    return content


def replace_private(path: Path, content: bytes) -> None:
    """Replace it as :func:`replace_whole` does; ConfigurationError, and nothing has changed."""
    try:
        replace_whole(path, content)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
