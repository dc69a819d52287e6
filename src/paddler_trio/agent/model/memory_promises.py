"""Memory that is free and spoken for: what agents of one machine are loading at this moment.

Each agent notes what it is about to take in a file of its own, and holds the file's lock as long as
it loads; the system drops the lock when the agent dies. A note whose lock is free is out of date.
Looking at the notes and adding one is a single step, under a lock of the folder.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import attrs
import structlog

log = structlog.get_logger("fit")

MAX_NOTES: Final = 64
"""Looked at; there are not as many agents on one machine."""
MAX_NOTE_BYTES: Final = 16 * 1024
FOLDER_LOCK: Final = "lock"
LOCK_S: Final = 5.0
"""The time for the others' looks, which take moments."""
LOCK_LOOK_S: Final = 0.01


@attrs.define(eq=False)
class MemoryPromises:
    """The promises of one agent, in the ``folder`` that it shares with the others. Calls block; one
    is made at a time, but :meth:`drop` may be called whenever no other call is made.

    Where the folder cannot be used, or another process keeps its lock, everything is promised and
    nothing is noted.
    """

    folder: Path
    _note: BinaryIO | None = attrs.field(default=None, init=False)

    def promise(self, needed: Mapping[str, int], fits: Callable[[Mapping[str, int]], bool]) -> bool:
        """Note that ``needed`` bytes are taken soon, by device, if ``fits`` with what others have
        noted; False if it does not. An earlier promise is dropped."""
        self.drop()
        try:
            with self._alone():
                if not fits(self._others()):
                    return False
                self._write(needed)
        except OSError as error:
            log.debug("agents of this machine share no notes", reason=str(error))
            return fits({})
        return True

    def of_others(self) -> Mapping[str, int]:
        """Return what other agents are loading, in bytes by device."""
        try:
            with self._alone():
                return self._others()
        except OSError:
            return {}

    def drop(self) -> None:
        """Note that the memory is taken, or is not needed any more. The file is left to the next
        look."""
        if self._note is not None:
            self._note.close()
            self._note = None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / FOLDER_LOCK).open("ab") as lock:
            _lock(lock)
            yield

    def _write(self, needed: Mapping[str, int]) -> None:
        note = (self.folder / f"{secrets.token_hex(8)}.json").open("xb")
        try:
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            note.write(json.dumps(dict(needed)).encode())
            note.flush()
        except OSError:
            note.close()
            raise
        self._note = note

    def _others(self) -> Mapping[str, int]:
        """Sum of the notes that are in force; others are removed."""
        total: Counter[str] = Counter()
        own = None if self._note is None else self._note.name
        for path in sorted(self.folder.glob("*.json"))[:MAX_NOTES]:
            if str(path) == own:
                continue
            with path.open("rb") as note:
                try:
                    fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    total.update(_sizes(note.read(MAX_NOTE_BYTES)))
                else:
                    path.unlink(missing_ok=True)
        return total


def _lock(file: BinaryIO) -> None:
    """Lock the folder; BlockingIOError if another process keeps it: one that was stopped in its
    look must not stop the others, and no signal ends a thread that waits."""
    give_up_s = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(LOCK_LOOK_S)
        else:
            return


def _sizes(data: bytes) -> dict[str, int]:
    """Return the sizes in a note; nothing if it is none of ours."""
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    return {device: size for device, size in value.items() if type(size) is int and size > 0}
