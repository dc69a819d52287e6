"""The headers of a model's files from a server, in growing ranges, into sparse files.

A sparse file has the size of the whole one and holds its first bytes; the rest takes no space and
is never read. All files of a model share one budget of bytes, and one of time.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import attrs
import trio

from paddler_trio.errors import MemoryUnknownError
from paddler_trio.models.download.block_plan import ByteRange
from paddler_trio.models.download.transfer import MAX_FILE_BYTES
from paddler_trio.net.client.download_errors import (
    DownloadError,
    Subject,
    TransferInterruptedError,
)
from paddler_trio.net.client.http_client import Answer, HttpClient
from paddler_trio.net.client.http_exchange import Location, exchange, next_piece

MAX_FETCHED_BYTES: Final = 64 << 20
FIRST_BYTES: Final = 4 << 20
"""The first bytes of a model: half of the headers end there, and a vocabulary of 128,000 tokens
within twice as much."""
FIRST_BYTES_OF_PART: Final = 64 << 10
"""The first bytes of a further part of a model, whose header is a list of tensors."""
FETCHING_S: Final = 80.0
"""The time for all headers of a model. Meanwhile no other model of this agent is judged, so none is
loaded: a source that sends a byte now and then must not hold them up."""
MAX_ATTEMPTS: Final = 3
"""The attempts at one range, while connections break off."""
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")


@attrs.define(eq=False)
class RemoteHeader:
    """One sparse file.

    Args:
      here_bytes: from its beginning.
      size_bytes: of the whole file; None until the server was asked.
      etag: of the server; empty if it has none.
    """

    path: Path
    location: Location
    subject: Subject
    here_bytes: int = 0
    size_bytes: int | None = None
    etag: str = ""


@attrs.define(eq=False)
class HeaderFetch:
    """Fetches what a dry run asks for."""

    client: HttpClient
    budget_bytes: int = MAX_FETCHED_BYTES
    budget_s: float = FETCHING_S
    fetched_bytes: int = attrs.field(default=0, init=False)
    headers: dict[str, RemoteHeader] = attrs.field(factory=dict, init=False)
    """The headers by the path of the sparse file."""
    _took_s: float = attrs.field(default=0.0, init=False)

    @property
    def present(self) -> dict[str, int]:
        """Bytes that are here, by path."""
        return {path: header.here_bytes for path, header in self.headers.items()}

    async def begin(
        self, path: Path, location: Location, subject: Subject, first_bytes: int
    ) -> None:
        """Make a sparse file at ``path``, which must not exist, with its first bytes;
        MemoryUnknownError."""
        header = RemoteHeader(path, location, subject)
        self.headers[str(path)] = header
        await self._extend(header, first_bytes)

    async def grow(self, path: str, needed_bytes: int) -> int:
        """Have at least ``needed_bytes``, and more for what follows; MemoryUnknownError.

        Returns:
          How many are here.
        """
        header = self.headers[path]
        size_bytes = header.size_bytes or 0
        if needed_bytes > size_bytes:
            raise MemoryUnknownError(
                "truncated",
                f"{header.subject.model_path} has {size_bytes} bytes, its header at least "
                f"{needed_bytes}",
            )
        await self._extend(header, max(needed_bytes, 2 * header.here_bytes), needed_bytes)
        return header.here_bytes

    async def _extend(self, header: RemoteHeader, stop: int, needed: int = 1) -> None:
        left = self.budget_bytes - self.fetched_bytes
        if header.here_bytes + left < needed:
            raise MemoryUnknownError(
                "header_too_large",
                f"the headers of {header.subject.model_path} are larger than "
                f"{self.budget_bytes >> 20} MiB, the limit",
            )
        stop = min(stop, header.here_bytes + left, header.size_bytes or stop)
        began_s = trio.current_time()
        try:
            with trio.fail_after(max(0.0, self.budget_s - self._took_s)):
                await self._ask_up_to(header, stop)
        except trio.TooSlowError as error:
            raise MemoryUnknownError(
                "unreachable",
                f"the headers of {header.subject.model_path} did not arrive within "
                f"{self.budget_s:g} s",
            ) from error
        except DownloadError as error:
            raise MemoryUnknownError(
                "unreachable", f"{header.subject.model_path}: {error.cause}"
            ) from error
        except OSError as error:
            raise MemoryUnknownError(
                "unreachable", f"{header.path} cannot be written: {error.strerror}"
            ) from error
        finally:
            self._took_s += trio.current_time() - began_s

    async def _ask_up_to(self, header: RemoteHeader, stop: int) -> None:
        """Ask again while connections break off; DownloadError, OSError."""
        attempts = 1
        while True:
            try:
                await self._ask(header, ByteRange(header.here_bytes, stop))
                return
            except TransferInterruptedError:
                attempts += 1
                if attempts > MAX_ATTEMPTS or self.fetched_bytes >= self.budget_bytes:
                    raise

    async def _ask(self, header: RemoteHeader, wanted: ByteRange) -> None:
        headers = {"Range": wanted.header}
        if header.etag and not header.etag.startswith("W/"):
            headers["If-Range"] = header.etag
        async with exchange(
            self.client, "GET", header.location, header.subject, headers=headers
        ) as answer:
            skipped = self._check(header, answer, wanted)
            await self._write(header, answer, wanted.stop, skipped)

    def _check(self, header: RemoteHeader, answer: Answer, wanted: ByteRange) -> int:
        """Compare the head of an answer with what is known; returns how many bytes of its body are
        here already."""
        name = header.subject.model_path
        text = answer.headers.get("content-range", "").strip()
        match = _CONTENT_RANGE.fullmatch(text)
        length = answer.headers.get("content-length", "")
        if answer.status == 206 and match is not None and int(match[1]) == wanted.start:
            size_bytes, skipped = int(match[3]), 0
        elif answer.status == 200 and length.isdigit():  # no ranges here: from the beginning
            size_bytes, skipped = int(length), wanted.start
        elif answer.status == 416 and wanted.start == 0:
            raise MemoryUnknownError("not_gguf", f"{name} is empty")
        else:
            raise MemoryUnknownError(
                "unreachable",
                f"{name}: {answer.url.host} was asked for {wanted.header} and answered "
                f"{answer.status} with the Content-Range {text[:80]!r}",
            )
        if size_bytes > MAX_FILE_BYTES:
            raise MemoryUnknownError(
                "unreachable",
                f"{name} would have {size_bytes} bytes, the limit is {MAX_FILE_BYTES}",
            )
        etag = answer.headers.get("etag") or answer.headers.get("last-modified") or ""
        if header.size_bytes not in {None, size_bytes} or (header.etag and etag != header.etag):
            raise MemoryUnknownError("unreachable", f"{name} changed while it was looked at")
        header.size_bytes, header.etag = size_bytes, etag
        return skipped

    async def _write(self, header: RemoteHeader, answer: Answer, stop: int, skipped: int) -> None:
        """Take bytes up to ``stop``; the connection ends with what is not wanted of the answer."""
        assert header.size_bytes is not None
        stop = min(stop, header.size_bytes)
        pieces: list[memoryview] = []
        position = header.here_bytes
        while position < stop and self.fetched_bytes < self.budget_bytes:
            piece = await next_piece(answer, header.subject)
            if not piece:
                break
            self.fetched_bytes += len(piece)
            data = memoryview(piece)
            data, skipped = data[skipped:], max(0, skipped - len(data))
            data = data[: stop - position]
            pieces.append(data)
            position += len(data)
        await trio.to_thread.run_sync(
            _write_sparse, header.path, header.size_bytes, header.here_bytes, pieces
        )
        header.here_bytes = position


def _write_sparse(path: Path, size_bytes: int, start: int, pieces: list[memoryview]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, size_bytes)
        for piece in pieces:
            while piece:
                written = os.pwrite(descriptor, piece, start)
                start += written
                piece = piece[written:]
    finally:
        os.close(descriptor)
