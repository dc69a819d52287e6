"""The agent's end of the record of what an engine is computing."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO

import attrs

from paddler_trio.errors import EngineError
from paddler_trio.scheduler.batching.suspects import Death, Work, suspects
from paddler_trio.wire.engine.crash_record import RECORD_BYTES, Activity, read_record

_OWN_SIGNALS = {
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
}
"""The signals that a process which fails dies of; all others are sent to it."""
_COMPUTES = {Activity.DECODING, Activity.SEEING, Activity.EMBEDDING}
_TAKES_MEMORY = {Activity.ADMITTING, Activity.SEEING, Activity.SAMPLING}
_MOST_BYTES = RECORD_BYTES + 256 * 1024


@attrs.frozen
class Suspects:
    """The requests that may have killed an engine, by their keys: each with the number of all
    suspects, of whatever kind. One that stands alone did it."""

    sequences: Mapping[int, int] = attrs.field(factory=dict)
    embeddings: Mapping[int, int] = attrs.field(factory=dict)

    def of_sequence(self, key: int) -> int:
        """Return among how many suspects this one is; 0 if it is none."""
        return self.sequences.get(key, 0)

    def of_embeddings(self, key: int) -> int:
        """Return among how many suspects these documents are; 0 if they are none."""
        return self.embeddings.get(key, 0)


@contextmanager
def crash_record_file() -> Iterator[int]:
    """Yield a file descriptor for an engine to write its record to; gone at the end of the
    block."""
    with _nameless_file() as file:
        file.truncate(RECORD_BYTES)
        yield file.fileno()


def _nameless_file() -> IO[bytes]:
    """Return a file without a name, in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("engine"), "r+b")
    return tempfile.TemporaryFile()  # the caller closes it


def suspects_in(record: int, status: int) -> Suspects:
    """Return the requests that may have killed the engine which wrote this record.

    Args:
      status: its exit status, as :class:`subprocess.Popen` has it.
    """
    read = read_record(os.pread(record, _MOST_BYTES, 0))
    works = [
        Work(
            working.thread,
            tuple((working.activity is Activity.EMBEDDING, key) for key in working.keys),
            computes=working.activity in _COMPUTES,
            takes_memory=working.activity in _TAKES_MEMORY,
        )
        for working in read.working
    ]
    is_from_outside = status < 0 and -status not in _OWN_SIGNALS
    found = suspects(works, Death(read.thread, read.has_dump, is_from_outside))
    return Suspects(
        {key: len(found) for embeds, key in found if not embeds},
        {key: len(found) for embeds, key in found if embeds},
    )


class LoadFailedError(EngineError):
    """The engine cannot serve this model with these settings.

    ``stage``: as in :class:`~paddler_trio.wire.engine.engine_pipe.LoadFailed`, or ``probe`` (its
    first decode is wrong) or ``crash`` (it died before it was proved).
    """

    def __init__(self, stage: str, reason: str, last_words: str = "") -> None:
        said = f"; llama.cpp said: {last_words}" if last_words else ""
        super().__init__(reason + said, permanent=True, kind="load_failed")
        self.stage = stage
        self.reason = reason


def how_it_ended(status: int) -> str:
    """Return the end of a process in words: its exit status, or the name of a signal."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
