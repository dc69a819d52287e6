"""Fetch for agents: files of the hub and of URLs, streamed on while they arrive.

The routes of the hub are the hub's own, below ``/api/v2/store/hf``, with its headers: an agent's
download code works with that address in place of the hub's. A file of a URL is named by the URL in
base64url. Errors of the source have the header of ``models.store_errors``.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urldefrag, urlsplit

import attrs
import structlog
import trio

from paddler_trio.errors import ConfigurationError
from paddler_trio.models.cache.content_hash import ContentHash
from paddler_trio.models.cache.url_cache import UrlFile
from paddler_trio.models.download.model_download import ModelDownload
from paddler_trio.models.hub.hub_cache import HubCache, name_problem, size_of
from paddler_trio.models.hub.hub_client import (
    HubFile,
    HubListing,
    check_names,
    file_metadata,
    hub_subject,
)
from paddler_trio.models.hub.hub_lookup import MAX_LISTING_BYTES
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.model_reference import is_gguf
from paddler_trio.net.client.download_errors import (
    AccessDeniedError,
    DownloadError,
    ServerFailedError,
    ServerUnreachableError,
    SourceMalformedError,
    Subject,
    TransferInterruptedError,
)
from paddler_trio.net.client.http_client import open_client
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import Params
from paddler_trio.processes.model_store.arrival import Arrivals
from paddler_trio.processes.model_store.send_arriving import begin_file, send_arriving, send_stored
from paddler_trio.processes.model_store.store import ModelStore
from paddler_trio.processes.model_store.store_connection import StoreConnection, StoreHeader
from paddler_trio.processes.model_store.store_messages import Found
from paddler_trio.processes.model_store.store_reach import hub_model_of, segments_of, url_of
from paddler_trio.system.synchronization import Future
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, UrlModel

log = structlog.get_logger("store")

MAX_KNOWN: Final = 4096
FRESH_S: Final = 2.0
"""Agents that were sent a desired state at the same moment are answered alike."""
STEADY_S: Final = 60.0
"""While the parts of one file are fetched, a branch stays what it was."""


@attrs.define(eq=False)
class _Known:
    """One question; the answer is a value, also when it is an error."""

    asked_s: float
    answer: Future[HubFile | DownloadError] = attrs.field(factory=Future)

    @property
    def age_s(self) -> float:
        return trio.current_time() - self.asked_s

    @property
    def is_failure(self) -> bool:
        return isinstance(self.answer.value, DownloadError)


@attrs.define(eq=False)
class HubMetadata:
    """See the module docstring.

    Args:
      settings: of the hub; the cache is the store's.
      nursery: of the questions: one whose client leaves is asked to its end for the others.
    """

    settings: HubSettings
    nursery: trio.Nursery
    _known: OrderedDict[HuggingFaceModel, _Known] = attrs.field(factory=OrderedDict, init=False)

    async def of(self, model: HuggingFaceModel, *, max_age_s: float) -> HubFile:
        """Return the file's commit, hash and size; what is cached if the hub cannot be asked.
        DownloadError."""
        check_names(model)
        known = self._known.get(model)
        if known is None or known.age_s > (FRESH_S if known.is_failure else max_age_s):
            known = self._known[model] = _Known(trio.current_time())
            self._known.move_to_end(model)
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
            self.nursery.start_soon(self._ask, model, known, name=f"metadata {model.repo_id}")
        answer = await known.answer.wait()
        if isinstance(answer, DownloadError):
            raise answer.with_traceback(None)
        return answer

    async def _ask(self, model: HuggingFaceModel, known: _Known) -> None:
        began_s = time.monotonic()
        try:
            known.answer.set(await self._asked(model))
        except DownloadError as error:
            known.answer.set(error)
            log.warning("the hub has no answer", model=model.repo_id, reason=error.cause)
        except Exception as error:  # the disk, or a bug: waiting requests get an answer
            log.exception("the hub could not be asked", model=model.repo_id)
            cause = f"the store failed: {type(error).__name__}: {error}"
            known.answer.set(ServerFailedError(hub_subject(model), cause))
        log.debug("hub asked", model=model.repo_id, took_s=round(time.monotonic() - began_s, 3))

    async def _asked(self, model: HuggingFaceModel) -> HubFile:
        subject = hub_subject(model)
        cached = await trio.to_thread.run_sync(_cached, self.settings, model)
        if cached is not None and cached.commit == model.revision:
            return cached  # a commit never changes
        try:
            if self.settings.offline:
                raise ServerUnreachableError(
                    subject, "HF_HUB_OFFLINE is set and the store does not have it"
                )
            token = await trio.to_thread.run_sync(self.settings.token)
            async with open_client(self.settings.timeouts) as client:
                found = await file_metadata(client, self.settings.endpoint, model, token)
        except ConfigurationError as error:
            raise AccessDeniedError(subject, str(error)) from error
        except (ServerUnreachableError, ServerFailedError, AccessDeniedError) as error:
            if cached is None:
                raise
            log.warning("the stored file is used", file=subject.model_path, reason=error.cause)
            return cached
        await trio.to_thread.run_sync(_remember, self.settings, model, found.commit)
        return found


def _remember(settings: HubSettings, model: HuggingFaceModel, commit: str) -> None:
    """Remember what the branch is now, for when the hub cannot be asked. Blocking."""
    try:
        HubCache(settings.cache).repository(model.repo_id).remember(model.revision, commit)
    except OSError as error:
        log.warning("the ref is not written", model=model.repo_id, reason=error.strerror)


def _cached(settings: HubSettings, model: HuggingFaceModel) -> HubFile | None:
    """Return the file as it lies in the store for this revision. Blocking."""
    repository = HubCache(settings.cache).repository(model.repo_id)
    found = repository.cached(model.revision, model.filename)
    if found is None or not found[0].is_symlink():
        return None
    pointer, commit = found
    return HubFile(commit, pointer.readlink().name, size_of(pointer))


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
