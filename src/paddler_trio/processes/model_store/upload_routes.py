"""Uploads: files of a model, resumable and compared with their names, then its manifest.

    HEAD .../blobs/sha256/{sha256}       200: it is here; 404 with Upload-Offset: how much of it
    PUT  .../blobs/sha256/{sha256}       its bytes, from the offset that Content-Range has
    PUT  .../manifests/sha256/{sha256}   canonical JSON: see ``models.pushed_model``

A file becomes visible when its hash has been compared and it is safe on the disk. What arrived of
an upload that broke off stays for a week, within the store's budget, for the client to go on.

    201 all is here now        202 go on at Upload-Offset         200 it was here already
    400 not such a request     409 go on elsewhere, or later      413 too large
    422 its hash is another    503 too many uploads               507 no room in the store
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import attrs
import structlog
import trio

from paddler_trio.errors import WireError
from paddler_trio.models.cache.cache_errors import FULL_ERRNOS
from paddler_trio.models.hub.hub_cache import size_of
from paddler_trio.models.pushed.pushed_model import (
    MAX_MANIFEST_BYTES,
    MAX_PUSHED_BYTES,
    Manifest,
    read_manifest,
)
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import Params
from paddler_trio.processes.model_store.store import ModelStore
from paddler_trio.processes.model_store.store_connection import ReaderGoneError, StoreConnection
from paddler_trio.processes.model_store.store_layout import StoreLayout, checked_sha256
from paddler_trio.processes.model_store.upload_file import UploadFile, expired_uploads, here_bytes
from paddler_trio.system.durable import write_durably

log = structlog.get_logger("store")

T = TypeVar("T")

MAX_UPLOADS: Final = 8
"""The uploads at once; each has a few MiB in memory."""
WRITE_BYTES: Final = 4 * 1024 * 1024
"""Written and hashed at once, in a thread."""
PROCESSING_S: Final = 5.0
"""A client that waits for a hash and for the disk is sent so often that it goes on."""
_RANGE: Final = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_PROCESSING: Final = b"HTTP/1.1 102 Processing\r\n\r\n"


@attrs.frozen
class Window:
    """The bytes of a body: from ``start`` up to ``stop`` of a file of ``total_bytes``."""

    start: int
    stop: int
    total_bytes: int


@attrs.define(eq=False)
class UploadRoutes:
    """The handlers of these routes."""

    store: ModelStore
    _uploading: set[str] = attrs.field(factory=set, init=False)

    @property
    def _layout(self) -> StoreLayout:
        return self.store.layout

    def _partial(self, sha256: str) -> Path:
        return self._layout.uploads / f"{sha256}.partial"

    async def head_blob(self, connection: StoreConnection, params: Params) -> None:
        """Answer whether a file is here, or how much of it."""
        sha256 = checked_sha256(params["sha256"])
        size_bytes = await trio.to_thread.run_sync(size_of, self._layout.pushed_blob(sha256))
        if size_bytes is None:
            here = await trio.to_thread.run_sync(here_bytes, self._partial(sha256))
            raise _gap(404, here, "it is not here")
        length = ("Content-Length", str(size_bytes))
        await connection.send_head(200, [length, ("ETag", f'"{sha256}"')])

    async def put_blob(self, connection: StoreConnection, params: Params) -> None:
        """Take a file, or a part of it."""
        sha256 = checked_sha256(params["sha256"])
        window = asked_window(connection.headers.get("content-range"), connection.body_bytes)
        target = self._layout.pushed_blob(sha256)
        if await trio.to_thread.run_sync(size_of, target) is not None:
            await connection.send_text(200, "it is here already")
            return
        async with self._turn(sha256):
            key = self._layout.key(target)
            no_room = await self.store.claim(key, window.total_bytes)
            if no_room is not None:
                raise HttpProblem(507, str(no_room))
            try:
                await self._check_disk(sha256, window)
                status, headers, text = await self._receive(connection, sha256, window)
            finally:
                await self.store.settle(key)
        await connection.send_text(status, text, headers)

    async def put_manifest(self, connection: StoreConnection, params: Params) -> None:
        """Name a model; HttpProblem 409 lists what is not here of it."""
        sha256 = checked_sha256(params["sha256"])
        body = await connection.receive_whole(MAX_MANIFEST_BYTES)
        digest = hashlib.sha256(body).hexdigest()
        if digest != sha256:
            raise HttpProblem(422, f"the manifest has the SHA-256 {digest}, not {sha256}")
        try:
            manifest = await trio.to_thread.run_sync(read_manifest, body)
        except WireError as error:
            raise HttpProblem(400, str(error)) from error
        missing = await trio.to_thread.run_sync(self._missing, manifest)
        if missing:
            raise HttpProblem(409, f"push these files first: {', '.join(missing[:10])}")
        target = self._layout.manifest(sha256)
        key = self._layout.key(target)
        no_room = await self.store.claim(key, len(body))
        if no_room is not None:
            raise HttpProblem(507, str(no_room))
        try:
            await trio.to_thread.run_sync(write_durably, target, body)
        except OSError as error:
            raise _disk_problem(error) from error
        finally:
            await self.store.settle(key)
        connection.changed = manifest.source(manifest.files[0])
        log.info("model pushed", model=connection.changed)
        await connection.send_text(201, manifest.source(manifest.files[0]))

    # --------------------------------------------------------------- one upload

    @asynccontextmanager
    async def _turn(self, sha256: str) -> AsyncIterator[None]:
        """Keep others from writing this file while the block lasts; HttpProblem 409, 503."""
        again = (b"retry-after", b"1")
        if sha256 in self._uploading:
            raise HttpProblem(409, "somebody is uploading this file now", [again])
        if len(self._uploading) >= MAX_UPLOADS:
            raise HttpProblem(503, f"{MAX_UPLOADS} files are being uploaded, the limit", [again])
        self._uploading.add(sha256)
        try:
            await self._expire()
            yield
        finally:
            self._uploading.discard(sha256)

    async def _receive(
        self, connection: StoreConnection, sha256: str, window: Window
    ) -> tuple[int, list[tuple[str, str]], str]:
        """Write the body; returns the answer. Cancellation keeps what is written."""
        path = self._partial(sha256)
        try:
            upload = await trio.to_thread.run_sync(UploadFile.open, path, window.start)
            if upload is None:
                here = await trio.to_thread.run_sync(here_bytes, path)
                raise _gap(409, here, f"bytes from {window.start} leave a gap")
            try:
                before = upload.position
                try:
                    await _write_body(connection, upload)
                finally:
                    self.store.counters.pushed_bytes += upload.position - before
                if upload.position < window.total_bytes:
                    return 202, [("Upload-Offset", str(upload.position))], "go on"
                digest = await _while_client_waits(
                    connection, lambda: upload.sha256(lambda _: trio.from_thread.check_cancelled())
                )
                if digest != sha256:
                    await trio.to_thread.run_sync(upload.discard)
                    log.error("upload refused", expected=sha256, sha256=digest)
                    raise HttpProblem(
                        422, f"what arrived has the SHA-256 {digest}, not {sha256}: it is dropped"
                    )
                target = self._layout.pushed_blob(sha256)
                await _while_client_waits(connection, lambda: upload.publish(target))
            finally:
                upload.close()
        except OSError as error:
            raise _disk_problem(error) from error
        log.info("file pushed", sha256=sha256, size_bytes=window.total_bytes)
        return 201, [], "it is here"

    async def _check_disk(self, sha256: str, window: Window) -> None:
        """Raise HttpProblem 507 if the disk has no room for what is still to come."""
        path = self._partial(sha256)

        def lacks() -> int:
            missing = window.total_bytes - min(window.start, here_bytes(path))
            return missing - shutil.disk_usage(self._layout.root).free

        lacking = await trio.to_thread.run_sync(lacks)
        if lacking > 0:
            raise HttpProblem(507, f"the disk of the model store lacks {lacking} bytes for it")

    async def _expire(self) -> None:
        """Remove what nobody goes on with. A task of its own would look as seldom."""
        folder = self._layout.uploads
        being_written = frozenset(self._uploading)
        try:
            expired = await trio.to_thread.run_sync(expired_uploads, folder, being_written)
        except OSError as error:
            log.warning("old uploads cannot be listed", reason=str(error))
            return
        for sha256 in expired:
            if sha256 not in self._uploading:
                key = self._layout.key(self._layout.pushed_blob(sha256))
                log.info("an upload that nobody went on with is removed", sha256=sha256)
                with suppress(HttpProblem):  # it went meanwhile, or is desired: then it stays
                    await self.store.remove(key)

    def _missing(self, manifest: Manifest) -> list[str]:
        """Return the names of files that are not here in the right size. Blocking."""
        return [
            file.name
            for file in manifest.all_files
            if size_of(self._layout.pushed_blob(file.sha256)) != file.size
        ]


def asked_window(content_range: str | None, body_bytes: int) -> Window:
    """Return which part of its file a body is; HttpProblem 400 or 413."""
    if content_range is None:
        window = Window(0, body_bytes, body_bytes)
    else:
        match = _RANGE.fullmatch(content_range.strip())
        if match is None:
            raise HttpProblem(
                400, f"Content-Range is {content_range[:80]!r}, not bytes FIRST-LAST/TOTAL"
            )
        first, last, total = map(int, match.groups())
        window = Window(first, last + 1, total)
    if not window.start < window.stop <= window.total_bytes:
        raise HttpProblem(400, f"bytes {window.start} to {window.stop} of {window.total_bytes}")
    if window.stop - window.start != body_bytes:
        raise HttpProblem(
            400,
            f"Content-Range has {window.stop - window.start} bytes, Content-Length {body_bytes}",
        )
    if window.total_bytes > MAX_PUSHED_BYTES:
        raise HttpProblem(
            413, f"a file of {window.total_bytes} bytes; the limit is {MAX_PUSHED_BYTES}"
        )
    return window


async def _write_body(connection: StoreConnection, upload: UploadFile) -> None:
    """Write the body as it comes, a few MiB at a time.

    Errors:
      HttpProblem, ReaderGoneError: the body broke off; what came of it is written.
      OSError: the disk.
    """
    pieces: list[bytes] = []
    waiting_bytes = 0
    while True:
        piece = b""
        try:
            piece = await connection.receive_body()
        finally:
            pieces.append(piece)
            waiting_bytes += len(piece)
            if waiting_bytes and (not piece or waiting_bytes >= WRITE_BYTES):
                with trio.CancelScope(shield=True):  # of a few MiB
                    await trio.to_thread.run_sync(upload.write, pieces)
                pieces, waiting_bytes = [], 0
        if not piece:
            return


async def _while_client_waits(connection: StoreConnection, work: Callable[[], T]) -> T:
    """Return the result of blocking ``work``, however long it takes; the client sees that it goes
    on. OSError.

    A client that leaves now changes nothing: all of its bytes are here.
    """
    results: list[T] = []
    failures: list[OSError] = []

    async def report() -> None:
        with suppress(ReaderGoneError):
            while True:
                await trio.sleep(PROCESSING_S)
                await connection.send(_PROCESSING)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(report, name="processing")
        try:
            results.append(await trio.to_thread.run_sync(work))
        except OSError as error:  # raised below, without the nursery's group
            failures.append(error)
        nursery.cancel_scope.cancel(reason="it is done")
    if failures:
        raise failures[0]
    return results[0]


def _gap(status: int, here: int, why: str) -> HttpProblem:
    return HttpProblem(
        status, f"{why}: {here} bytes have arrived", [(b"upload-offset", b"%d" % here)]
    )


def _disk_problem(error: OSError) -> HttpProblem:
    if error.errno in FULL_ERRNOS:
        return HttpProblem(507, f"the disk of the model store is full: {error.strerror}")
    return HttpProblem(500, f"the disk of the model store failed: {error.strerror or error}")
