"""Files that hold secrets or their hashes: read whole and bounded, replaced whole, mode 0600."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from paddler_trio.errors import ConfigurationError


def read_private(path: Path, *, limit_bytes: int) -> bytes | None:
    """Return the file's content, or None if there is no file; raise ConfigurationError if it cannot
    be read or is too long.
    """
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
    """The old file or the new one is there, whatever happens; only its owner may read it.

    If root writes it, it belongs to the owner of its folder: the daemon that reads it need not be
    root. ConfigurationError, and nothing has changed.
    """
    folder = path.parent
    temporary: str | None = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:  # mkstemp made it 0600
            file.write(content)
            file.flush()
            if os.geteuid() == 0:
                owner = folder.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        temporary = None
        _sync(folder)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
