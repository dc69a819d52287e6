"""A file that is still being downloaded, and the journal of which of its blocks are here.

    KEY.partial    the bytes, at their final places; sparse
    KEY.journal    4096 bytes of JSON padded with blanks, then one byte for each block: 1 is here

A block is written before the journal marks it, so a process that is killed loses what was on its
way and nothing else. After a crash of the machine the file system may have lost blocks that the
journal marks: a journal of another boot counts only if the content's hash is known, which finds
that. The downloader holds a lock on the journal; others read it to show progress and to count the
space that it still needs. Everything here blocks; OSErrors pass through.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.models.download.block_plan import block_count, bytes_here
from paddler_trio.system.durable import begin_write_back

HEADER_BYTES: Final = 4096
BLOCK_BYTES: Final = 1 << 20
WRITE_BYTES: Final = 64 * 1024
"""The bytes of one call. For longer ones Linux takes larger pages for its cache, whose memory is
new to a virtual machine more often: writing then cost three times the processor time."""
WRITE_BACK_BYTES: Final = 8 << 20
"""Whenever so many are complete, they start for the disk; the ``fsync`` at the end finds little."""
MAX_VALIDATOR_CHARS: Final = 1024
_DATA_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@attrs.frozen
class Journal:
    """The content of a journal.

    Args:
      size_bytes: of the whole file.
      etag: of the server that sent the bytes, as it wrote it; empty if it had none.
      here: one byte for each block.
    """

    size_bytes: int
    block_bytes: int
    etag: str
    boot_id: str
    here: bytearray = attrs.field(repr=False)

    @property
    def here_bytes(self) -> int:
        return bytes_here(self.here, self.size_bytes, self.block_bytes)


@attrs.define(eq=False, kw_only=True)
class PartialFile:
    """An open download. Make one with :meth:`open`, and close it whatever happens."""

    path: Path
    journal_path: Path
    journal: Journal | None
    """None until :meth:`begin`."""
    _data_fd: int
    _journal_fd: int = -1

    @classmethod
    def open(cls, folder: Path, key: str, *, knows_hash: bool) -> PartialFile:
        """Open what an earlier attempt left, or an empty file. What cannot be continued is
        removed."""
        folder.mkdir(parents=True, exist_ok=True)
        path, journal_path = folder / f"{key}.partial", folder / f"{key}.journal"
        journal = read_journal(journal_path)
        is_usable = (
            journal is not None
            and _is_regular_of(path, journal.size_bytes)
            and (knows_hash or journal.boot_id == boot_id())
        )
        if not is_usable:
            journal = None
            remove(path)
            remove(journal_path)
        partial = cls(
            path=path,
            journal_path=journal_path,
            journal=journal,
            data_fd=os.open(path, _DATA_FLAGS, 0o666),
        )
        if journal is not None:
            partial._open_journal()
        return partial

    def begin(self, size_bytes: int, etag: str, block_bytes: int = BLOCK_BYTES) -> Journal:
        """Start anew with a file of ``size_bytes``; what was here is lost."""
        self._start_anew()
        os.ftruncate(self._data_fd, size_bytes)
        here = bytearray(block_count(size_bytes, block_bytes))
        journal = Journal(size_bytes, block_bytes, etag[:MAX_VALIDATOR_CHARS], boot_id(), here)
        fields = {
            "size_bytes": size_bytes,
            "block_bytes": block_bytes,
            "etag": journal.etag,
            "boot_id": journal.boot_id,
        }
        # an escape of a byte of Latin-1, as an ETag may have them, takes three times the room
        text = json.dumps(fields, ensure_ascii=False)
        header = text.encode().ljust(HEADER_BYTES - 1) + b"\n"
        assert len(header) == HEADER_BYTES
        fresh = self.journal_path.with_suffix(".fresh")
        remove(fresh)
        fresh.write_bytes(header + here)
        fresh.replace(self.journal_path)
        self.journal = journal
        self._open_journal()
        return journal

    def write(self, start: int, data: Sequence[bytes | memoryview], *, block: int | None) -> None:
        """Write ``data`` at byte ``start``; then mark its blocks in the journal, of which ``block``
        is the first, if it is whole ones."""
        write_at(self._data_fd, start, data)
        stop = start + sum(map(len, data))
        if block is not None:
            assert self.journal is not None
            marks = b"\1" * block_count(stop - start, self.journal.block_bytes)
            os.pwrite(self._journal_fd, marks, HEADER_BYTES + block)
        write_back = range(
            start - start % WRITE_BACK_BYTES, stop - stop % WRITE_BACK_BYTES, WRITE_BACK_BYTES
        )
        if write_back:
            begin_write_back(self._data_fd, write_back.start, write_back.stop - write_back.start)

    def read_into(self, start: int, space: memoryview) -> int:
        """Read from byte ``start`` to the beginning of ``space``; returns how many bytes."""
        return os.preadv(self._data_fd, [space], start)

    def truncate(self) -> None:
        """Start anew with a file whose size nobody knows: no journal, nothing to continue."""
        self._start_anew()
        self.journal = None

    def _start_anew(self) -> None:
        """Start with an empty file, another one than before: a reader of that one sees it as it
        was."""
        self._close_journal()
        remove(self.journal_path)
        if os.fstat(self._data_fd).st_size:
            os.close(self._data_fd)
            self._data_fd = -1
            remove(self.path)
            self._data_fd = os.open(self.path, _DATA_FLAGS | os.O_EXCL, 0o666)

    def discard(self) -> None:
        """Remove both files; the object is closed."""
        self.close()
        remove(self.path)
        remove(self.journal_path)

    def close(self) -> None:
        self._close_journal()
        if self._data_fd >= 0:
            os.close(self._data_fd)
            self._data_fd = -1

    def _open_journal(self) -> None:
        self._journal_fd = os.open(self.journal_path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        with suppress(OSError):  # a file system without locks: others cannot count its space
            fcntl.flock(self._journal_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _close_journal(self) -> None:
        if self._journal_fd >= 0:
            os.close(self._journal_fd)
            self._journal_fd = -1


def read_journal(path: Path) -> Journal | None:
    """Return the journal as it is now; None if there is none or it is damaged."""
    try:
        with path.open("rb") as file:
            header, here = file.read(HEADER_BYTES), bytearray(file.read())
        fields = json.loads(header)
        journal = Journal(
            fields["size_bytes"], fields["block_bytes"], fields["etag"], fields["boot_id"], here
        )
        sizes = (journal.size_bytes, journal.block_bytes)
        is_whole = (
            all(type(size) is int for size in sizes)
            and journal.size_bytes >= 0
            and journal.block_bytes > 0
            and isinstance(journal.etag, str)
            and isinstance(journal.boot_id, str)
            and len(here) == block_count(*sizes)
            and here.count(0) + here.count(1) == len(here)
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return journal if is_whole else None


def space_promised(journals: Iterable[Path], *, except_for: Path, device: int) -> int:
    """Return how many bytes other downloads, running now and on this ``device``, still have to
    write."""
    total = 0
    for path in journals:
        if path == except_for:
            continue
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(descriptor).st_dev != device:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:  # its downloader runs
                journal = read_journal(path)
                total += 0 if journal is None else journal.size_bytes - journal.here_bytes
        finally:
            os.close(descriptor)
    return total


def write_at(descriptor: int, start: int, data: Sequence[bytes | memoryview]) -> None:
    """Write all of ``data`` at byte ``start``."""
    for piece in data:
        view = memoryview(piece)
        while view:
            written = os.pwrite(descriptor, view[:WRITE_BYTES], start)
            start += written
            view = view[written:]


def boot_id() -> str:
    """Return which boot of this machine this is; empty if it cannot be known."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def remove(path: Path) -> None:
    """Remove a file or a link; a folder that stands in the way is an OSError."""
    path.unlink(missing_ok=True)


def _is_regular_of(path: Path, size_bytes: int) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == size_bytes
