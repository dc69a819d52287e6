"""Where the desired state survives a restart: nowhere, or one JSON file.

The file is Paddler's: ``{"balancer_desired_state": {...}, "version": "1"}``. It is replaced as a
whole (temporary file, fsync, rename, fsync of the folder), so a crash leaves the old one or the
new one. A file that cannot be understood is never touched: the operator is told, and decides.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Protocol

import attrs
import trio

from paddler_trio.errors import ConfigurationError, StateDatabaseError, WireError
from paddler_trio.wire.codec import loads, structure, unstructure
from paddler_trio.wire.desired_state import BalancerDesiredState

FORMAT_VERSION = "1"
MAX_FILE_BYTES = 4 * 1024 * 1024


class StateDatabase(Protocol):
    """Both raise StateDatabaseError and then have changed nothing."""

    async def read(self) -> BalancerDesiredState: ...

    async def write(self, state: BalancerDesiredState) -> None: ...


@attrs.define
class MemoryDatabase:
    """``memory://``: starts from the default state, forgets at the end of the process."""

    _state: BalancerDesiredState = attrs.field(factory=BalancerDesiredState.default)

    async def read(self) -> BalancerDesiredState:
        await trio.lowlevel.checkpoint()
        return self._state

    async def write(self, state: BalancerDesiredState) -> None:
        await trio.lowlevel.checkpoint()
        self._state = state


@attrs.define
class FileDatabase:
    """``file:///absolute/path``. A missing or empty file becomes the default state."""

    path: Path
    _version: str = attrs.field(default=FORMAT_VERSION, init=False)

    async def read(self) -> BalancerDesiredState:
        return await trio.to_thread.run_sync(self._read)

    async def write(self, state: BalancerDesiredState) -> None:
        await trio.to_thread.run_sync(self._write, state)

    def _read(self) -> BalancerDesiredState:
        try:
            with self.path.open("rb") as file:
                text = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            text = b""
        except OSError as error:
            raise StateDatabaseError(f"cannot read {self.path}: {error.strerror}") from error
        if len(text) > MAX_FILE_BYTES:
            raise StateDatabaseError(
                f"{self.path} has more than {MAX_FILE_BYTES} bytes: it is not a state database"
            )
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
        document = {"balancer_desired_state": unstructure(state), "version": self._version}
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        folder = self.path.parent
        temporary: str | None = None
        try:
            descriptor, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=folder)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self.path)
            temporary = None
            folder_descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder_descriptor)
            finally:
                os.close(folder_descriptor)
        except OSError as error:
            raise StateDatabaseError(f"cannot write {self.path}: {error.strerror}") from error
        finally:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)


def open_state_database(url: str) -> StateDatabase:
    """``memory://`` or ``file:///absolute/path``; ConfigurationError for anything else."""
    if url in ("memory://", "memory"):
        return MemoryDatabase()
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
        return FileDatabase(path)
    raise ConfigurationError(
        f"--state-database {url!r} is neither memory:// nor file:///absolute/path"
    )
