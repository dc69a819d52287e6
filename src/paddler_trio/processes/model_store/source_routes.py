"""Fetch for agents: files of the hub and of URLs, streamed on while they arrive.

The routes of the hub are the hub's own, below ``/api/v2/store/hf``, with its headers: an agent's
download code works with that address in place of the hub's. A file of a URL is named by the URL in
base64url. Errors of the source have the header of ``models.store_errors``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urldefrag, urlsplit

import attrs
import trio

from paddler_trio.models.cache.content_hash import ContentHash
from paddler_trio.models.cache.url_cache import UrlFile
from paddler_trio.models.download.model_download import ModelDownload
from paddler_trio.models.hub.hub_cache import HubCache, name_problem, size_of
from paddler_trio.models.hub.hub_client import HubFile, HubListing, hub_subject
from paddler_trio.models.hub.hub_lookup import MAX_LISTING_BYTES
from paddler_trio.models.model_reference import is_gguf
from paddler_trio.net.client.download_errors import (
    ServerFailedError,
    SourceMalformedError,
    Subject,
    TransferInterruptedError,
)
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import Params
from paddler_trio.processes.model_store.arrival import Arrivals
from paddler_trio.processes.model_store.hub_metadata import FRESH_S, STEADY_S, HubMetadata
from paddler_trio.processes.model_store.send_arriving import send_arriving
from paddler_trio.processes.model_store.send_stored import begin_file, send_stored
from paddler_trio.processes.model_store.store import ModelStore
from paddler_trio.processes.model_store.store_connection import StoreConnection, StoreHeader
from paddler_trio.processes.model_store.store_counters import Found
from paddler_trio.processes.model_store.store_reach import hub_model_of, segments_of, url_of
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, UrlModel

MAX_TURNS: Final = 5
"""A file may be removed, or given up, in the moment in which it is asked for."""
MAX_LISTINGS: Final = 4
"""That are asked for at once: decoding one takes a multiple of its bytes. Others wait."""


@attrs.frozen(eq=False)
class SourceRoutes:
    """See the module docstring."""

    store: ModelStore
    metadata: HubMetadata
    arrivals: Arrivals
    _listings: trio.Semaphore = attrs.field(
        factory=lambda: trio.Semaphore(MAX_LISTINGS), init=False
    )

    async def hub_file(self, connection: StoreConnection, params: Params) -> None:
        """Serve ``/{org}/{repo}/resolve/{revision}/{file}``, as the hub answers it without
        redirects."""
        model = _hub_model(connection.request.raw_path)
        if connection.request.method == "HEAD":
            known = await self.metadata.of(model, max_age_s=FRESH_S)
            await _send_metadata(connection, known)
            return
        known = await self.metadata.of(model, max_age_s=STEADY_S)
        pinned = attrs.evolve(model, revision=known.commit)
        layout = self.store.layout
        repository = HubCache(layout.hub).repository(model.repo_id)
        validator = f'"{known.etag}"'

        def whole() -> tuple[Path, str] | None:
            path = repository.pointer(known.commit, model.filename)
            fits = size_of(path) is not None and known.size_bytes in {None, size_of(path)}
            return (path, validator) if fits else None

        await self._send(
            connection,
            pinned,
            hub_subject(model),
            layout.key(repository.blob(known.etag)),
            whole,
            size_bytes=known.size_bytes,
            validator=validator,
            headers=_hub_headers(known),
        )

    async def hub_listing(self, connection: StoreConnection, params: Params) -> None:
        """Serve ``/api/models/{repo}/revision/{revision}``: the paths of a repository."""
        segments = segments_of(connection.request.raw_path)[7:]
        if "revision" not in segments[1:3] or len(segments) > 4:
            raise HttpProblem(404, "")
        at = segments.index("revision", 1)
        problem = name_problem("/".join(segments[:at]), "any", "/".join(segments[at + 1 :]))
        if problem is not None:
            raise HttpProblem(400, problem)
        repo_id, revision = "/".join(segments[:at]), "/".join(segments[at + 1 :])
        listing = await connection.while_reader(partial(self._listing, repo_id, revision))
        siblings = [{"rfilename": path} for path in listing.files]
        await connection.send_json(200, {"sha": listing.commit, "siblings": siblings})

    async def _listing(self, repo_id: str, revision: str) -> HubListing:
        async with self._listings:
            download = ModelDownload(self.arrivals.settings, lambda progress: None)
            return await download.listing(repo_id, revision, max_bytes=MAX_LISTING_BYTES)

    async def url_file(self, connection: StoreConnection, params: Params) -> None:
        """Serve ``/{base64url of the URL}``; ``#sha256=…`` at its end has the content compared."""
        url = _url(params["name"])
        file = UrlFile.of(self.store.layout.urls, urldefrag(url)[0])
        kind, _, value = urldefrag(url)[1].partition("=")
        expected = ContentHash.of_etag(value.lower()) if kind == "sha256" else None

        def whole() -> tuple[Path, str] | None:
            record = file.cached()
            if record is None or expected not in {None, record.hash}:
                return None
            # a version of before may have kept anything
            return (file.path, record.etag) if is_gguf(file.path) else None

        await self._send(
            connection,
            UrlModel(url),
            Subject(url, is_hub=False),
            self.store.layout.key(file.path),
            whole,
        )

    async def _send(
        self,
        connection: StoreConnection,
        model: HuggingFaceModel | UrlModel,
        subject: Subject,
        key: str,
        whole: Callable[[], tuple[Path, str] | None],
        *,
        size_bytes: int | None = None,
        validator: str | None = None,
        headers: tuple[StoreHeader, ...] = (),
    ) -> None:
        """Send the file, as it lies here or as it arrives.

        Args:
          whole: where it lies and its validator, if it is here; blocking.
          size_bytes: of it, if the source has announced it.
          validator: of what arrives; None for what its source sends.
        """
        for turn in range(MAX_TURNS):
            async with self.store.used(key):
                found = None
                if self.arrivals.find(key) is None:
                    found = await trio.to_thread.run_sync(whole)
                if found is not None:
                    path, its = found
                    self._count("whole", turn)
                    if await send_stored(connection, path, validator=its, headers=headers):
                        return
                    continue
                is_new = self.arrivals.find(key) is None
                self._count("nothing" if is_new else "arriving", turn)
                arrival = self.arrivals.join(key, model, subject, size_bytes)
                send = partial(
                    send_arriving, connection, arrival, validator=validator, headers=headers
                )
                with arrival.read():
                    try:
                        if await connection.while_reader(send):
                            return
                    except TransferInterruptedError:
                        if not arrival.is_given_up or connection.has_begun:
                            raise
        raise ServerFailedError(
            subject, "the file goes as soon as it is here: the store is too small"
        )

    def _count(self, found: Found, turn: int) -> None:
        """Count what was there of the file when it was asked for; later turns are the same
        request."""
        if turn == 0:
            self.store.counters.found[found] += 1


def _hub_headers(known: HubFile) -> tuple[StoreHeader, ...]:
    size = () if known.size_bytes is None else (("X-Linked-Size", str(known.size_bytes)),)
    return (("X-Repo-Commit", known.commit), ("X-Linked-ETag", f'"{known.etag}"'), *size)


async def _send_metadata(connection: StoreConnection, known: HubFile) -> None:
    validator = f'"{known.etag}"'
    if known.size_bytes is None:
        await connection.send_head(200, [("ETag", validator), *_hub_headers(known)])
    else:
        await begin_file(
            connection, known.size_bytes, validator=validator, headers=_hub_headers(known)
        )


def _hub_model(raw_path: str) -> HuggingFaceModel:
    """Return the model; HttpProblem 404 for what is no route of the hub."""
    model = hub_model_of(raw_path)
    if model is None:
        raise HttpProblem(404, "")
    return model


def _url(name: str) -> str:
    """Return the URL; SourceMalformedError for what is no http or https URL."""
    try:
        url = url_of(name)
        parts = urlsplit(url)
    except ValueError as error:
        raise SourceMalformedError(Subject(name[:80], is_hub=False), str(error)) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SourceMalformedError(Subject(url, is_hub=False), "it is no http or https URL")
    return url
