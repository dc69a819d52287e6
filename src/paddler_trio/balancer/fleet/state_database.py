"""Paddler's state file, and how state files are read and replaced.

The file is Paddler's: ``{"balancer_desired_state": {...}, "version": "1"}``. State files are
replaced as a whole (temporary file, fsync, rename, fsync of the folder), so a crash leaves the old
one or the new one. A file that does not parse is never touched: the error names it, and the
operator decides. A file that is not regular (a symbolic link, a FIFO, a device) is refused before
it is opened; the first write would replace a link, and not the file it names.

Everything here blocks. ``fleet/fleet_database.py`` is the store of the whole fleet.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.errors import ConfigurationError, StateDatabaseError, WireError
from paddler_trio.system.durable import replace_whole, sweep
from paddler_trio.wire.codec import dumps, loads, structure, unstructure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState

FORMAT_VERSION: Final = "1"
MAX_FILE_BYTES: Final = 4 * 1024 * 1024


@attrs.define
class StateFile:
    """Paddler's file at ``path``. Raises StateDatabaseError and then has changed nothing."""

    path: Path
    _version: str = attrs.field(default=FORMAT_VERSION, init=False)
    """As it was read; the versions that Paddler writes differ."""

    def is_empty(self) -> bool:
        """Return whether it is there, and nothing is in it."""
        text = content(self.path, limit_bytes=MAX_FILE_BYTES)
        return not text.strip() and self.path.exists()

    def read(self) -> BalancerDesiredState:
        """Read the file; a missing or empty one is that of a new balancer."""
        text = content(self.path, limit_bytes=MAX_FILE_BYTES)
        if not text.strip():
            state = BalancerDesiredState.default()
            self.write(state)
            return state
        try:
            document = loads(text)
            if not isinstance(document, dict):
                raise WireError("expected an object @ $")
            unknown = set(document) - {"balancer_desired_state", "version"}
            if unknown:
                raise WireError(f"unknown field {min(unknown)!r} @ $")
            version = document.get("version", FORMAT_VERSION)
            if not isinstance(version, str):
                raise WireError("expected a string @ $.version")
            if "balancer_desired_state" not in document:
                raise WireError("required field missing @ $.balancer_desired_state")
            state = structure(document["balancer_desired_state"], BalancerDesiredState)
        except WireError as error:
            raise StateDatabaseError(
                f"{self.path} is not a valid state database: {error}; it was left as it is. "
                "Repair it, or move it away to start from the default state"
            ) from error
        self._version = version
        return state

    def write(self, state: BalancerDesiredState) -> None:
        """The old file or the new one is there, whatever happens."""
        document = {"balancer_desired_state": unstructure(state), "version": self._version}
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        replace(self.path, text.encode())


def digest_of(state: BalancerDesiredState) -> str:
    """Return the digest of everything in it, a template that is not in use included."""
    return hashlib.sha256(dumps(unstructure(state))).hexdigest()


def content(path: Path, *, limit_bytes: int) -> bytes:
    """Return the content of a file; empty if there is none. StateDatabaseError."""
    sweep(path)
    try:
        _check_kind(path, path.lstat().st_mode)
        # should it be another file by now, this neither follows a link nor waits for a writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            _check_kind(path, os.fstat(descriptor).st_mode)
            text = file.read(limit_bytes + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StateDatabaseError(f"cannot read {path}: {error.strerror}") from error
    if len(text) > limit_bytes:
        raise StateDatabaseError(
            f"{path} has more than {limit_bytes} bytes: it is not a state database"
        )
    return text


_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _check_kind(path: Path, mode: int) -> None:
    kind = _KINDS.get(stat.S_IFMT(mode))
    if kind is not None:
        raise StateDatabaseError(
            f"{path} is {kind}, not a regular file: --state-database takes the path of a file, or "
            "of one that does not exist yet"
        )


def replace(path: Path, text: bytes) -> None:
    """Put a new file in the place of the old one, whole or not at all; StateDatabaseError."""
    try:
        replace_whole(path, text)
    except OSError as error:
        raise StateDatabaseError(f"cannot write {path}: {error.strerror}") from error


def state_file(url: str) -> Path | None:
    """Return the path as :func:`state_path` does; ConfigurationError also if the file could not be
    made there."""
    path = state_path(url)
    if path is not None and not path.parent.is_dir():
        raise ConfigurationError(
            f"--state-database {url!r}: the folder {path.parent} does not exist; create it"
        )
    return path


def state_path(url: str) -> Path | None:
    """Return the path in a state database's URL, None for ``memory://``; ConfigurationError."""
    if url in ("memory://", "memory"):
        return None
    if url.startswith("file://"):
        path = Path(url.removeprefix("file://"))
        if not path.is_absolute():
            raise ConfigurationError(
                f"--state-database {url!r}: the path {str(path)!r} is not absolute; "
                "write file:///absolute/path, with three slashes"
            )
        return path
    raise ConfigurationError(
        f"--state-database {url!r} is neither memory:// nor file:///absolute/path"
    )
