"""Predict what a model would take of this machine's memory, before it is fetched or loaded.

source -> files that are here, or sparse files with fetched headers -> a dry run -> MemoryNeed
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urldefrag, urlsplit, urlunsplit

import attrs
import structlog
import trio

from paddler_trio.errors import ConfigurationError, MemoryUnknownError
from paddler_trio.models.cache.url_cache import UrlFile
from paddler_trio.models.download.header_fetch import FIRST_BYTES, FIRST_BYTES_OF_PART, HeaderFetch
from paddler_trio.models.hub.hub_cache import HubCache, is_commit
from paddler_trio.models.hub.hub_choice import part_names
from paddler_trio.models.hub.hub_client import (
    check_names,
    file_location,
    file_metadata,
    hub_subject,
)
from paddler_trio.models.hub.hub_settings import HubSettings, open_client_of
from paddler_trio.models.memory.dry_run_process import DryRun, open_dry_run
from paddler_trio.models.memory.memory_correction import (
    KnownNeeds,
    MemoryHistory,
    Observation,
    Question,
    corrected,
    model_key,
    observation,
    parameters_key,
    question_of,
)
from paddler_trio.models.pushed.pushed_download import fetch_manifest
from paddler_trio.models.pushed.pushed_model import PushedFolder, is_pushed, pushed_source
from paddler_trio.net.client.download_errors import (
    AccessDeniedError,
    DownloadError,
    ServerFailedError,
    ServerUnreachableError,
    Subject,
)
from paddler_trio.net.client.http_client import HttpClient
from paddler_trio.net.client.http_exchange import Location
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.memory_need import MemoryNeed, MemoryUse
from paddler_trio.wire.paddler.desired_state import (
    DesiredModel,
    HuggingFaceModel,
    LocalToAgent,
    NoModel,
    UrlModel,
)

log = structlog.get_logger("memory")


@attrs.define(eq=False)
class MemoryQuestions:
    """Answers for one model, as many as are asked; see :func:`open_memory_questions`.

    Args:
      parts: where the model's files are, or sparse copies of them.
      projection: the same of its projection; None if it has none.
      adapters: the same of its adapters.
    """

    parts: tuple[str, ...]
    projection: str | None
    adapters: list[str]
    _dry_run: DryRun
    _fetch: HeaderFetch
    _model: str
    """Names the model among former loads."""
    _observations: list[Observation]
    _known: KnownNeeds

    @property
    def fetched_bytes(self) -> int:
        """The bytes of headers that were fetched so far."""
        return self._fetch.fetched_bytes

    async def need(self, load: LoadModel) -> MemoryNeed:
        """Return what the model takes with the parameters of ``load``, whose paths are not read;
        MemoryUnknownError.

        The first answer takes as long as headers take to fetch and some tenths of a second, unless
        it is known; later ones some milliseconds each; another ``n_gpu_layers`` costs tenths of a
        second again.
        """
        load = attrs.evolve(
            load,
            model_path=self.parts[0],
            projection_path=self.projection,
            adapters=self.adapters,
        )
        question, need = await trio.to_thread.run_sync(self._find, load)
        if need is None:
            need = await self._dry_run.need(load, self.parts, self._fetch.present, self._fetch.grow)
            self._known.keep(question, need)
        return corrected(need, self._model, parameters_key(load), self._observations)

    def _find(self, load: LoadModel) -> tuple[Question | None, MemoryNeed | None]:
        question = None if self._fetch.present else question_of(load, self.parts)
        return question, self._known.find(question)


@asynccontextmanager
async def open_memory_questions(
    model: DesiredModel,
    projection: DesiredModel,
    hub: HubSettings,
    adapters: Sequence[DesiredModel] = (),
    *,
    known: KnownNeeds | None = None,
) -> AsyncIterator[MemoryQuestions]:
    """Ask about a model wherever it is; MemoryUnknownError if its headers are not to be had.

    What former loads took beyond their predictions is added (:func:`remember_load`). Nothing is
    fetched but headers, of what is not here already, and nothing stays: the process and the sparse
    files end with the block. ``known`` answers what was asked before, without a process.
    """
    async with _scratch_folder() as folder, open_client_of(hub) as client:
        fetch = HeaderFetch(client)
        finder = _Finder(hub, client, fetch, folder)
        parts = await finder.find(model, "model")
        if parts is None:
            raise MemoryUnknownError("missing", "no model is named")
        projections = await finder.find(projection, "projection")
        files = [await finder.find(each, f"adapter {i}") for i, each in enumerate(adapters)]
        history = MemoryHistory.beside_cache(hub)
        observations = await trio.to_thread.run_sync(history.read)
        async with open_dry_run() as dry_run:
            yield MemoryQuestions(
                parts,
                None if projections is None else projections[0],
                [path for paths in files if paths is not None for path in paths],
                dry_run,
                fetch,
                await trio.to_thread.run_sync(model_key, parts),
                observations,
                KnownNeeds(lambda: None) if known is None else known,
            )


async def remember_load(
    load: LoadModel, need: MemoryNeed, use: MemoryUse, hub: HubSettings
) -> None:
    """Keep what was predicted and what an engine really took, for the next prediction.

    Args:
      load: what it loaded.
      need: the prediction for it.
      use: as the engine reported it when it was ready.
    """

    def remember() -> None:
        key = model_key(_local_parts(load.model_path))
        history = MemoryHistory.beside_cache(hub)
        history.add(observation(key, parameters_key(load), need, use))

    try:
        await trio.to_thread.run_sync(remember)
    except OSError as error:  # the file is gone again
        log.warning("this load is not remembered", reason=error.strerror)


async def memory_need(load: LoadModel) -> MemoryNeed:
    """Return what loading the local files takes that ``load`` names; MemoryUnknownError."""
    async with open_dry_run() as dry_run:
        return await dry_run.need(load, _local_parts(load.model_path))


@attrs.define(eq=False)
class _Finder:
    hub: HubSettings
    client: HttpClient
    fetch: HeaderFetch
    folder: Path

    async def find(self, model: DesiredModel, name: str) -> tuple[str, ...] | None:
        """Return the files of ``model``, the first part first; None for no model. Sparse files go
        below ``name``."""
        try:
            match model:
                case NoModel():
                    return None
                case LocalToAgent(path):
                    if not await trio.to_thread.run_sync(os.path.isfile, path):
                        raise MemoryUnknownError("missing", f"there is no file at {path}")
                    return _local_parts(path)
                case HuggingFaceModel():
                    return await self._hub(model, name)
                case UrlModel(url) if is_pushed(url):
                    return await self._pushed(url, name)
                case UrlModel(url):
                    return await self._url(url, name)
        except DownloadError as error:
            raise MemoryUnknownError(
                "unreachable", f"{error.subject.model_path}: {error.cause}"
            ) from error

    async def _hub(self, model: HuggingFaceModel, name: str) -> tuple[str, ...]:
        check_names(model)
        names = part_names(model.filename)
        repository = HubCache(self.hub.cache).repository(model.repo_id)

        def cached(revision: str) -> tuple[str, ...] | None:
            found = [repository.cached(revision, name) for name in names]
            paths = tuple(str(part[0]) for part in found if part is not None)
            return paths if len(paths) == len(names) else None

        here = await trio.to_thread.run_sync(cached, model.revision)
        if here is not None and (self.hub.offline or is_commit(model.revision)):
            return here
        self._check_online(hub_subject(model))
        token = await self._token()
        try:
            known = await file_metadata(self.client, self.hub.endpoint, model, token)
        except (ServerUnreachableError, ServerFailedError, AccessDeniedError):
            if here is None:
                raise
            return here
        here = await trio.to_thread.run_sync(cached, known.commit)
        if here is not None:
            return here
        parts = [attrs.evolve(model, filename=part, revision=known.commit) for part in names]
        return await self._fetch_all(
            name,
            [
                (part.filename, file_location(self.hub.endpoint, part, token), hub_subject(part))
                for part in parts
            ],
        )

    async def _url(self, url: str, name: str) -> tuple[str, ...]:
        subject = Subject(url, is_hub=False)
        address, _ = urldefrag(url)
        parts = urlsplit(address)
        before, slash, last = parts.path.rpartition("/")
        names = (last,) if parts.query else part_names(last)
        urls = [urlunsplit(parts._replace(path=f"{before}{slash}{part}")) for part in names]
        files = [UrlFile.of(self.hub.url_cache, part) for part in urls]
        if await trio.to_thread.run_sync(lambda: all(file.cached() for file in files)):
            return tuple(str(file.path) for file in files)
        self._check_online(subject)
        locations = [await self._url_location(part) for part in urls]
        return await self._fetch_all(
            name,
            [
                (file.name, location, subject)
                for file, location in zip(files, locations, strict=True)
            ],
        )

    async def _pushed(self, url: str, name: str) -> tuple[str, ...]:
        subject = Subject(url, is_hub=False)
        source, store = pushed_source(url), self.hub.store
        if source is None:
            raise MemoryUnknownError("unreachable", f"{url[:200]!r} names no pushed model")
        folder = PushedFolder(self.hub.pushed_cache, source.manifest_sha256)
        manifest = await trio.to_thread.run_sync(folder.manifest)
        if manifest is not None:
            files = manifest.wanted(source.name)
            here = await trio.to_thread.run_sync(lambda: [folder.cached(file) for file in files])
            paths = tuple(str(path) for path in here if path is not None)
            if files and len(paths) == len(files):
                return paths
        if store is None:
            raise MemoryUnknownError("unreachable", f"{url}: the balancer has no model store")
        token = await self._token()
        if manifest is None:
            location = Location(
                f"{store}/manifests/sha256/{source.manifest_sha256}", token, is_store=True
            )
            manifest = await fetch_manifest(self.client, location, subject, source.manifest_sha256)
        files = manifest.wanted(source.name)
        if not files:
            raise MemoryUnknownError("unreachable", f"the pushed model has no {source.name!r}")
        return await self._fetch_all(
            name,
            [
                (
                    file.name,
                    Location(f"{store}/blobs/sha256/{file.sha256}", token, is_store=True),
                    subject,
                )
                for file in files
            ],
        )

    async def _url_location(self, url: str) -> Location:
        """Return where the URL is asked for: there, or at the model store."""
        mirrored = self.hub.mirrored(url)
        if mirrored is None:
            return Location(url)
        return Location(mirrored, await self._token(), is_store=True)

    async def _token(self) -> str | None:
        try:
            return await trio.to_thread.run_sync(self.hub.token)
        except ConfigurationError as error:
            raise MemoryUnknownError("unreachable", str(error)) from error

    def _check_online(self, subject: Subject) -> None:
        if self.hub.offline:
            raise MemoryUnknownError(
                "unreachable",
                f"{subject.model_path}: HF_HUB_OFFLINE is set and the file is not cached",
            )

    async def _fetch_all(
        self, name: str, parts: list[tuple[str, Location, Subject]]
    ) -> tuple[str, ...]:
        folder = self.folder / name
        await trio.to_thread.run_sync(folder.mkdir)
        paths = [folder / filename.rpartition("/")[2] for filename, _, _ in parts]
        first_bytes = FIRST_BYTES
        for path, (_, location, subject) in zip(paths, parts, strict=True):
            await self.fetch.begin(path, location, subject, first_bytes)
            first_bytes = FIRST_BYTES_OF_PART
        return tuple(map(str, paths))


def _local_parts(path: str) -> tuple[str, ...]:
    file = Path(path)
    return tuple(str(file.with_name(name)) for name in part_names(file.name))


@asynccontextmanager
async def _scratch_folder() -> AsyncIterator[Path]:
    """Yield an empty folder that is gone after the block."""
    folder = await trio.to_thread.run_sync(lambda: tempfile.mkdtemp(prefix="paddler-trio-fit-"))
    try:
        yield Path(folder)
    finally:
        with trio.CancelScope(shield=True):  # a few files; nothing waits for anybody
            await trio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))
