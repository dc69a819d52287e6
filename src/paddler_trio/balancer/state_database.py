"""The store of the desired state: memory, or one JSON file.

The file is Paddler's: ``{"balancer_desired_state": {...}, "version": "1"}``. It is replaced as a
whole (temporary file, fsync, rename, fsync of the folder), so a crash leaves the old one or the
new one. A file that does not parse is never touched: the error names it, and the operator decides.
A file that is not regular (a symbolic link, a FIFO, a device) is refused before it is opened; the
first write would replace a link, and not the file it names.

Extras, for which Paddler's format has no field, are kept the same way in a file of their own beside
it: ``PATH.v2.json`` with ``{"extras": {...}, "version": "2"}``. Without extras there is none. If
both change, this file is written first, with the digest of the state that its extras belong to and
with the extras that they replace; a read after a crash between the two files takes those that fit.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import attrs
import structlog
import trio

from paddler_trio.errors import ConfigurationError, StateDatabaseError, WireError
from paddler_trio.wire.codec import dumps, loads, structure, unstructure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState
from paddler_trio.wire.shape import OMITTED
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras

log = structlog.get_logger("state")

FORMAT_VERSION = "1"
MAX_FILE_BYTES = 4 * 1024 * 1024


class StateDatabase(Protocol):
    """Both raise StateDatabaseError and then have changed nothing."""

    async def read(self) -> tuple[BalancerDesiredState, Extras]: ...

    async def write(self, state: BalancerDesiredState, extras: Extras) -> None: ...


@attrs.define
class MemoryDatabase:
    """``memory://``: starts from the default state, forgets at the end of the process."""

    _state: BalancerDesiredState = attrs.field(factory=BalancerDesiredState.default)
    _extras: Extras = attrs.field(default=NO_EXTRAS)

    async def read(self) -> tuple[BalancerDesiredState, Extras]:
        await trio.lowlevel.checkpoint()
        return self._state, self._extras

    async def write(self, state: BalancerDesiredState, extras: Extras) -> None:
        await trio.lowlevel.checkpoint()
        self._state, self._extras = state, extras


@attrs.define
class FileDatabase:
    """``file:///absolute/path``. A missing or empty file becomes the default state."""

    path: Path
    _version: str = attrs.field(default=FORMAT_VERSION, init=False)
    _extras: Extras = attrs.field(default=NO_EXTRAS, init=False)
    """Those in the files, once they were read."""
    _is_final: bool = attrs.field(default=True, init=False)
    """The file of the extras holds no others that it replaces."""

    async def read(self) -> tuple[BalancerDesiredState, Extras]:
        return await trio.to_thread.run_sync(self._read_both)

    async def write(self, state: BalancerDesiredState, extras: Extras) -> None:
        await trio.to_thread.run_sync(self._write_both, state, extras)

    def _read_both(self) -> tuple[BalancerDesiredState, Extras]:
        state = self._read()
        document = self._read_extras()
        self._extras = document.extras
        if document.replaced is not None:  # a crash came between the two files
            if document.state != _digest(state):
                self._extras = document.replaced
            self._is_final = False
            self._write_extras(self._extras)
        return state, self._extras

    def _write_both(self, state: BalancerDesiredState, extras: Extras) -> None:
        if extras == self._extras and self._is_final:
            self._write(state)
            return
        pending = _ExtrasDocument(extras, state=_digest(state), replaced=self._extras)
        self._is_final = False
        _replace(self._extras_path, unstructure(pending))
        try:
            self._write(state)
        except StateDatabaseError:
            self._write_extras(self._extras)
            raise
        self._extras = extras
        self._write_extras(extras)

    def _write_extras(self, extras: Extras) -> None:
        """Only these extras count from now on. If that cannot be written, the file still means the
        same as long as the state stays, and the next write repeats it."""
        try:
            _replace(self._extras_path, unstructure(_ExtrasDocument(extras)))
            self._is_final = True
        except StateDatabaseError as error:
            log.warning("the file of the extras still names replaced ones", reason=str(error))

    @property
    def _extras_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.v2.json")

    def _read_extras(self) -> _ExtrasDocument:
        path = self._extras_path
        text = _content(path)
        if not text.strip():
            return _ExtrasDocument(NO_EXTRAS)
        try:
            return structure(loads(text), _ExtrasDocument)
        except WireError as error:
            raise StateDatabaseError(
                f"{path} holds no valid extras: {error}; it was left as it is. "
                "Repair it, or move it away to start without extras"
            ) from error

    def _read(self) -> BalancerDesiredState:
        text = _content(self.path)
        if not text.strip():
            state = BalancerDesiredState.default()
            self._write(state)
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

    def _write(self, state: BalancerDesiredState) -> None:
        _replace(
            self.path, {"balancer_desired_state": unstructure(state), "version": self._version}
        )


class _ExtrasVersion(StrEnum):
    V2 = "2"


@attrs.frozen
class _ExtrasDocument:
    extras: Extras
    version: _ExtrasVersion = _ExtrasVersion.V2
    state: str | None = attrs.field(default=None, metadata=OMITTED)
    """Digest of the state that the extras go with, while that is being written."""
    replaced: Extras | None = attrs.field(default=None, metadata=OMITTED)
    """The extras of any other state."""


def _digest(state: BalancerDesiredState) -> str:
    return hashlib.sha256(dumps(unstructure(state))).hexdigest()


def _content(path: Path) -> bytes:
    """The content of a file; empty if there is none. Blocking."""
    try:
        _check_kind(path, path.lstat().st_mode)
        # should it be another file by now, this neither follows a link nor waits for a writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            _check_kind(path, os.fstat(descriptor).st_mode)
            text = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StateDatabaseError(f"cannot read {path}: {error.strerror}") from error
    if len(text) > MAX_FILE_BYTES:
        raise StateDatabaseError(
            f"{path} has more than {MAX_FILE_BYTES} bytes: it is not a state database"
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


def _replace(path: Path, document: object) -> None:
    """Put a new file in the place of the old one, whole or not at all. Blocking."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    folder = path.parent
    temporary: str | None = None
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        temporary = None
        folder_descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder_descriptor)
        finally:
            os.close(folder_descriptor)
    except OSError as error:
        raise StateDatabaseError(f"cannot write {path}: {error.strerror}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def open_state_database(url: str) -> StateDatabase:
    """``memory://`` or ``file:///absolute/path``; ConfigurationError for anything else."""
    path = state_file(url)
    return MemoryDatabase() if path is None else FileDatabase(path)


def state_file(url: str) -> Path | None:
    """The path in a state database's URL, None for ``memory://``; ConfigurationError."""
    if url in ("memory://", "memory"):
        return None
    if url.startswith("file://"):
        path = Path(url.removeprefix("file://"))
        if not path.is_absolute():
            raise ConfigurationError(
                f"--state-database {url!r}: the path {str(path)!r} is not absolute; "
                "write file:///absolute/path, with three slashes"
            )
        if not path.parent.is_dir():
            raise ConfigurationError(
                f"--state-database {url!r}: the folder {path.parent} does not exist; create it"
            )
        return path
    raise ConfigurationError(
        f"--state-database {url!r} is neither memory:// nor file:///absolute/path"
    )
