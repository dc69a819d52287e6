"""The bytes of one file, from a server into a :class:`PartialFile`: in parts, several at once.

    opening request -+- 206: this part, and other workers take the other parts
                     +- 200: the whole file in one go (the server knows no ranges)

Parts are asked for with ``If-Range``, and every answer is compared with the first one, so bytes of
two versions never meet. A worker whose connection breaks goes on where it was. The hash follows
behind the blocks that are here without a gap, in a thread, while the others still arrive.
"""

from __future__ import annotations

import errno
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial as bound
from math import inf
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.models.cache.cache_errors import disk_errors, one_error
from paddler_trio.models.cache.content_hash import ContentHash, Hash, new_hash
from paddler_trio.models.download.block_plan import BlockPlan, ByteRange
from paddler_trio.models.download.download_progress import ProgressMeter
from paddler_trio.models.download.partial_file import BLOCK_BYTES, PartialFile
from paddler_trio.models.model_reference import GGUF_MAGIC, check_magic
from paddler_trio.net.client.download_errors import (
    DownloadError,
    RemoteFileChangedError,
    ServerFailedError,
    Subject,
    TransferInterruptedError,
)
from paddler_trio.net.client.http_client import Answer, HttpClient
from paddler_trio.net.client.http_exchange import (
    Location,
    exchange,
    first_bytes,
    next_bytes,
    next_piece,
)

log = structlog.get_logger("download")

MAX_FILE_BYTES: Final = 1 << 50
"""A larger announcement is a mistake or an attack; no file system of today has room for it."""
MAX_RESTARTS: Final = 3
"""The number of times that a file may change while it is fetched before the attempt fails."""
SPACE_BLOCKS: Final = 4
"""The blocks that one request keeps in memory at most. Bytes that come fast are written so many
blocks at a time: each thread that is asked to write costs as much as a quarter of the writing of a
block."""
HOLD_S: Final = 0.05
"""The time that a whole block waits for others at most, whether they come or not."""
HASH_CHUNK_BYTES: Final = 16 << 20
"""The bytes in one go of the thread. Between two, it waits for a turn of the event loop that
receives: with 4 MiB the hash of a fast download was done a third of a second behind the last byte
of each GB."""
HASH_PIECE_BYTES: Final = 256 * 1024
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")


class LargeFileError(Exception):
    """The file is larger than this transfer may fetch. Nothing of it was written."""


@attrs.frozen(kw_only=True)
class TransferLimits:
    """Limits of a transfer in its use of the network.

    Args:
      workers: requests at once.
      part_blocks: blocks of 1 MiB that one request asks for.
      failures: in a row and without a single byte, after which an attempt fails.
      first_pause_s: before a worker asks again; doubles.
    """

    workers: int = 4
    part_blocks: int = 32
    failures: int = 5
    first_pause_s: float = 0.5


@attrs.frozen(kw_only=True)
class RemoteFile:
    """The file that is fetched.

    Args:
      size_bytes: None if nobody announced it.
      expected: None if nobody announced it; then the hash that is returned is SHA-256.
      is_model: nothing is written unless it begins as a GGUF file does.
      is_named_by_hash: the partial file belongs to ``expected``, so what another server sent of it
        counts; each server has an ETag of its own for the same content.
    """

    subject: Subject
    location: Location
    size_bytes: int | None = None
    expected: ContentHash | None = None
    is_model: bool = False
    is_named_by_hash: bool = False


@attrs.frozen
class Fetched:
    """The file that arrived.

    Args:
      hash: of the content; of the kind that was expected, else SHA-256.
      etag: of the server that sent the bytes; empty if it gave none.
    """

    size_bytes: int
    hash: ContentHash
    etag: str


@attrs.define(eq=False, kw_only=True)
class Transfer:
    """One attempt at one file. See the module docstring.

    Args:
      check_space: called with the bytes still to be written before the first one is, blocking;
        raises CacheFullError.
      most_bytes: LargeFileError as soon as it is known that the file has more; None for no limit.
      on_change: called when there is another plan, and at each block that arrived.
      on_void: called before what is here of the file is given up: the plan counts no more.
    """

    client: HttpClient
    remote: RemoteFile
    partial: PartialFile
    meter: ProgressMeter
    limits: TransferLimits
    check_space: Callable[[int], None]
    most_bytes: int | None = None
    on_change: Callable[[Transfer], None] = lambda transfer: None
    on_void: Callable[[], None] = lambda: None
    _plan: BlockPlan = attrs.field(init=False)
    _etag: str = attrs.field(default="", init=False)
    _advanced: trio.Event = attrs.field(factory=trio.Event, init=False)
    _writers: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(1), init=False
    )
    """Threads that write to one file at once spin on the lock that the kernel has for it."""

    async def run(self) -> Fetched:
        """Fetch and hash the file; DownloadError, LargeFileError. The hash is not compared here.

        Cancellation: the partial file keeps every block that was written; SPACE_BLOCKS of each
        request are lost at most.
        """
        restarts = 0
        while True:
            try:
                with disk_errors(self.remote.subject):
                    return await self._run()
            except RemoteFileChangedError as error:
                restarts += 1
                if restarts > MAX_RESTARTS:
                    raise
                log.warning("download starts anew", reason=error.cause)
                self.remote.location.resolved = None
                self.on_void()
                with disk_errors(self.remote.subject):
                    await trio.to_thread.run_sync(self.partial.truncate)

    async def _run(self) -> Fetched:
        journal = self.partial.journal
        size_bytes = self.remote.size_bytes
        if journal is not None and size_bytes not in {None, journal.size_bytes}:
            raise self._changed(f"it has {size_bytes} bytes and had {journal.size_bytes}")
        if size_bytes is None and journal is not None:
            size_bytes = journal.size_bytes
        if size_bytes is not None:
            self._check_size(size_bytes)
        if journal is None:
            opening = ByteRange(0, BLOCK_BYTES * self.limits.part_blocks)
        else:
            self._follow("" if self.remote.is_named_by_hash else journal.etag)
            taken = self._plan.take()
            if taken is None:
                return await self._rehash()
            opening = taken
        return await self._open(opening)

    async def _open(self, opening: ByteRange) -> Fetched:
        async with self._ask(opening) as (answer, granted):
            if granted is None:
                return await self._whole(answer)
            if self.partial.journal is None:
                await self._begin(granted[1], answer)
                taken = self._plan.take()
                if taken is None:  # an empty file
                    return await self._rehash()
                opening = taken
            else:
                await trio.to_thread.run_sync(self.check_space, self._missing_bytes)
            return await self._fetch_parts(answer, opening)

    # -------------------------------------------------------------- with ranges

    async def _fetch_parts(self, answer: Answer, opening: ByteRange) -> Fetched:
        async with one_error() as nursery:
            hashing = Hashing(self)
            nursery.start_soon(hashing.run, name="hash")
            for index in range(1, self.limits.workers):
                nursery.start_soon(self._work, None, None, name=f"part worker {index}")
            await self._work(answer, opening)
            await hashing.done.wait()
        return hashing.fetched()

    async def _work(self, answer: Answer | None, part: ByteRange | None) -> None:
        """Fetch parts until none is left to take."""
        part = part or self._plan.take()
        if part is None:
            return
        space = self._new_space()
        while part is not None:
            await self._fetch_part(part, answer, space)
            answer = None
            part = self._plan.take()

    async def _fetch_part(self, part: ByteRange, answer: Answer | None, space: memoryview) -> None:
        """Fetch all bytes of ``part``, however often the connection breaks."""
        writing = PartWriting(self, part, space)
        failures = 0
        while writing.position < part.stop:
            before = writing.position
            try:
                if answer is not None:
                    await writing.consume(answer)
                else:
                    async with self._ask(ByteRange(before, part.stop)) as (fresh, granted):
                        if granted is None:
                            raise self._changed("the server knows ranges no more")
                        await writing.consume(fresh)
                if writing.position < part.stop:
                    raise TransferInterruptedError(
                        self.remote.subject, "the server sent less than it announced"
                    )
            except DownloadError as error:
                if error.is_permanent or isinstance(error, RemoteFileChangedError):
                    raise
                failures = 1 if writing.position > before else failures + 1
                if failures > self.limits.failures:
                    raise
                await trio.sleep(self.limits.first_pause_s * 2 ** (failures - 1))
            answer = None

    # ---------------------------------------------------------- without ranges

    async def _whole(self, answer: Answer) -> Fetched:
        """Take an answer that is the whole file from its first byte."""
        size_bytes = _content_length(answer)
        if size_bytes is None:
            size_bytes = self.remote.size_bytes
        if self.remote.size_bytes not in {None, size_bytes}:
            raise self._changed(f"it has {size_bytes} bytes, not {self.remote.size_bytes}")
        if size_bytes is None:
            return await self._endless(answer)
        await self._begin(size_bytes, answer)
        self.meter.set(0, size_bytes)
        part = ByteRange(0, size_bytes)
        async with one_error() as nursery:
            hashing = Hashing(self)
            nursery.start_soon(hashing.run, name="hash")
            writing = PartWriting(self, part, self._new_space())
            await writing.consume(answer)
            if writing.position < size_bytes:
                raise TransferInterruptedError(
                    self.remote.subject,
                    f"the server ended after {writing.position} of {size_bytes} bytes",
                )
            await hashing.done.wait()
        return hashing.fetched()

    async def _endless(self, answer: Answer) -> Fetched:
        """Take a body whose end nobody announced: nothing of it can be continued later, so nothing
        of it stays if it breaks off."""
        await self._check_start(answer)
        await trio.to_thread.run_sync(self.partial.truncate)
        kind = "sha256" if self.remote.expected is None else self.remote.expected.kind
        digest = new_hash(kind, 0)
        self.meter.set(0)
        position = 0
        pending: list[bytes] = []
        pending_bytes = 0

        def flush(start: int, data: list[bytes]) -> None:
            self.check_space(sum(map(len, data)))
            self.partial.write(start, data, block=None)
            for piece in data:
                digest.update(piece)

        try:
            while piece := await next_piece(answer, self.remote.subject):
                self.meter.add(len(piece))
                pending.append(piece)
                pending_bytes += len(piece)
                if pending_bytes >= BLOCK_BYTES:
                    await trio.to_thread.run_sync(flush, position, pending)
                    position, pending, pending_bytes = position + pending_bytes, [], 0
                    self._check_reason(position)
            await trio.to_thread.run_sync(flush, position, pending)
        except BaseException:
            # it may have filled the disk, and nobody goes on with it
            with trio.CancelScope(shield=True), suppress(OSError):
                await trio.to_thread.run_sync(self.partial.truncate)
            raise
        return Fetched(
            position + pending_bytes, ContentHash(kind, digest.hexdigest()), _etag(answer)
        )

    # ------------------------------------------------------------------ pieces

    @asynccontextmanager
    async def _ask(
        self, wanted: ByteRange
    ) -> AsyncIterator[tuple[Answer, tuple[ByteRange, int] | None]]:
        """Yield the answer to a request for ``wanted``, and what it grants: a range and the size of
        the file, or None if it is the whole file from its start."""
        headers = {"Range": wanted.header}
        continues = self.partial.journal is not None
        if continues and _is_strong(self._etag):
            headers["If-Range"] = self._etag
        subject = self.remote.subject
        async with exchange(
            self.client, "GET", self.remote.location, subject, headers=headers
        ) as answer:
            if answer.status == 416:
                if continues:
                    raise self._changed("the range is not in it any more")
                if answer.headers.get("content-range", "").endswith("/0"):
                    yield answer, (ByteRange(0, 0), 0)  # an empty file
                    return
                raise ServerFailedError(subject, f"{answer.url.host} refuses the file's start")
            etag = _etag(answer)
            if continues and etag and self._etag and etag != self._etag:
                raise self._changed("its ETag is another one")
            self._etag = self._etag or etag
            if answer.status == 206:
                yield answer, self._granted(answer, wanted)
                return
            if answer.status != 200:
                raise ServerFailedError(
                    subject, f"{answer.url.host} answered {answer.status} to a request for it"
                )
            if continues and self._plan.here_bytes:
                raise self._changed("the server sends it from the start")
            yield answer, None

    def _granted(self, answer: Answer, wanted: ByteRange) -> tuple[ByteRange, int]:
        text = answer.headers.get("content-range", "")
        match = _CONTENT_RANGE.fullmatch(text.strip())
        host, subject = answer.url.host, self.remote.subject
        if match is None:
            raise ServerFailedError(subject, f"{host} sent the Content-Range {text[:80]!r}")
        start, last, size_bytes = map(int, match.groups())
        expected = self.remote.size_bytes if self.partial.journal is None else self._plan.size_bytes
        if expected not in {None, size_bytes}:
            raise self._changed(f"it has {size_bytes} bytes, not {expected}")
        self._check_size(size_bytes)
        if start != wanted.start or not start <= last < min(wanted.stop, size_bytes):
            raise ServerFailedError(
                subject, f"{host} was asked for {wanted.header} and sent {text[:80]!r}"
            )
        length = _content_length(answer)
        if length not in {None, last + 1 - start}:
            raise ServerFailedError(
                subject, f"{host} sent the Content-Range {text[:80]!r} and {length} bytes"
            )
        return ByteRange(start, last + 1), size_bytes

    async def _begin(self, size_bytes: int, answer: Answer) -> None:
        self._check_size(size_bytes)
        await self._check_start(answer)
        etag = _etag(answer)
        self.on_void()

        def begin() -> None:
            self.check_space(size_bytes)  # before a journal of that size
            self.partial.begin(size_bytes, etag)
            self.check_space(size_bytes)  # now that others can see what this one needs

        await trio.to_thread.run_sync(begin)
        self._follow(etag)

    def _follow(self, etag: str) -> None:
        """Plan with the journal that there is now."""
        journal = self.partial.journal
        assert journal is not None
        self._etag = etag
        self._plan = BlockPlan(
            journal.size_bytes, journal.block_bytes, self.limits.part_blocks, journal.here
        )
        self.meter.set(self._plan.here_bytes, journal.size_bytes)
        self.on_change(self)

    async def _rehash(self) -> Fetched:
        """Hash a file of which everything is here already."""
        hashing = Hashing(self)
        await hashing.run()
        return hashing.fetched()

    @property
    def _missing_bytes(self) -> int:
        return self._plan.size_bytes - self._plan.here_bytes

    def _check_size(self, size_bytes: int) -> None:
        self._check_reason(size_bytes)
        if self.most_bytes is not None and size_bytes > self.most_bytes:
            raise LargeFileError

    async def _check_start(self, answer: Answer) -> None:
        """Before room is asked for the rest; NotAModelError."""
        if self.remote.is_model:
            subject = self.remote.subject
            check_magic(await first_bytes(answer, subject, len(GGUF_MAGIC)), subject)

    def _check_reason(self, size_bytes: int) -> None:
        if size_bytes > MAX_FILE_BYTES:
            raise ServerFailedError(
                self.remote.subject,
                f"the file would have {size_bytes} bytes, the limit is {MAX_FILE_BYTES}",
            )

    def _changed(self, how: str) -> RemoteFileChangedError:
        return RemoteFileChangedError(
            self.remote.subject, f"the file changed on the server while it was fetched: {how}"
        )

    def _new_space(self) -> memoryview:
        """Return space for one request after the other."""
        plan = self._plan
        blocks = min(SPACE_BLOCKS, self.limits.part_blocks, max(1, len(plan.here)))
        return memoryview(bytearray(blocks * plan.block_bytes))

    async def write_blocks(self, start: int, data: memoryview) -> None:
        """Write whole blocks from byte ``start``; then they are here."""
        block_bytes = self._plan.block_bytes
        await trio.to_thread.run_sync(
            bound(self.partial.write, start, [data], block=start // block_bytes),
            limiter=self._writers,
        )
        for block_start in range(start, start + len(data), block_bytes):
            self._plan.arrived(block_start)
        self._advanced.set()
        self._advanced = trio.Event()
        self.on_change(self)

    @property
    def plan(self) -> BlockPlan:
        return self._plan

    @property
    def etag(self) -> str:
        return self._etag

    async def wait_block(self) -> None:
        """Return when another block has arrived."""
        await self._advanced.wait()


@attrs.define(eq=False)
class PartWriting:
    """Writes the bytes of one part, some blocks at a time.

    ``position`` is the byte that comes next; what belongs to an unfinished block waits in memory.
    Whole ones wait for others for HOLD_S at most.

    Args:
      space: for one block or more; what is in it belongs to this part until all of it is written.
    """

    transfer: Transfer
    part: ByteRange
    space: memoryview
    position: int = attrs.field(init=False)
    _start: int = attrs.field(init=False)
    """The byte of the file at the beginning of ``space``; a block begins with it."""
    _asked_s: float = attrs.field(default=0.0, init=False)
    """The time at which the first bytes in ``space`` were asked for."""

    def __attrs_post_init__(self) -> None:
        self.position = self._start = self.part.start

    async def consume(self, answer: Answer) -> None:
        """Read ``answer`` until it ends; what goes beyond the part is dropped."""
        subject = self.transfer.remote.subject
        try:
            while self.position < self.part.stop:
                stop = min(self._start + len(self.space), self.part.stop)
                free = self.space[self.position - self._start : stop - self._start]
                if self.position == self._start:
                    self._asked_s = trio.current_time()
                deadline_s = self._asked_s + HOLD_S if self._whole_bytes else inf
                with trio.move_on_at(deadline_s) as held:
                    count = await next_bytes(answer, subject, free)
                if held.cancelled_caught:  # nothing was read
                    await self._flush()
                    continue
                if not count:
                    break
                self.position += count
                self.transfer.meter.add(count)
                if self.position == stop or trio.current_time() - self._asked_s >= HOLD_S:
                    await self._flush()
        except DownloadError:
            await self._flush()  # it may be long until more comes
            raise
        if self.position < self.part.stop:
            await self._flush()
            return
        while await next_piece(answer, subject):
            pass

    @property
    def _whole_bytes(self) -> int:
        """The bytes of the blocks in the space that have all their bytes; the part's last may be
        shorter."""
        count = self.position - self._start
        if self.position == self.part.stop:
            return count
        return count - count % self.transfer.plan.block_bytes

    async def _flush(self) -> None:
        """Write the blocks that are whole; the rest moves to the beginning of the space."""
        count = self._whole_bytes
        if count == 0:
            return
        await self.transfer.write_blocks(self._start, self.space[:count])
        rest = self.position - self._start - count
        self.space[:rest] = self.space[count : count + rest]
        self._start += count
        self._asked_s = trio.current_time()


@attrs.define(eq=False)
class Hashing:
    """Hashes the file behind its arriving blocks."""

    transfer: Transfer
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    _digest: Hash = attrs.field(init=False)
    _space: memoryview = attrs.field(init=False)
    _kind: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        expected = self.transfer.remote.expected
        self._kind = "sha256" if expected is None else expected.kind
        self._digest = new_hash(self._kind, self.transfer.plan.size_bytes)
        self._space = memoryview(bytearray(HASH_PIECE_BYTES))

    async def run(self) -> None:
        plan, position = self.transfer.plan, 0
        while position < plan.size_bytes:
            ready = plan.contiguous_bytes
            if ready == position:
                await self.transfer.wait_block()
                continue
            count = min(ready - position, HASH_CHUNK_BYTES)
            position += await trio.to_thread.run_sync(self._update, position, count)
        self.done.set()

    def _update(self, start: int, count: int) -> int:
        """Hash bytes that are here, in pieces that the processor's own cache holds."""
        position, stop = start, start + count
        while position < stop:
            data = self._space[: stop - position]
            read = self.transfer.partial.read_into(position, data)
            if not read:
                raise OSError(errno.EIO, "the partial file became shorter")
            self._digest.update(data[:read])
            position += read
        return count

    def fetched(self) -> Fetched:
        return Fetched(
            self.transfer.plan.size_bytes,
            ContentHash(self._kind, self._digest.hexdigest()),
            self.transfer.etag,
        )


def _etag(answer: Answer) -> str:
    """Return what differs between versions: the ETag, else the date; empty if there is neither."""
    return answer.headers.get("etag") or answer.headers.get("last-modified") or ""


def _is_strong(etag: str) -> bool:
    """Return whether If-Range may have it."""
    return bool(etag) and not etag.startswith("W/")


def _content_length(answer: Answer) -> int | None:
    text = answer.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else None
