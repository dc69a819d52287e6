"""Turn ``store://sha256/...`` into verified files: the manifest first, then what is missing of it.

There is one server that may have a pushed model: the store of the balancer that this agent is
linked to. What is here already needs none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import attrs
import structlog
import trio

from paddler_trio.errors import WireError
from paddler_trio.models.cache.cache_errors import disk_errors
from paddler_trio.models.cache.cache_place import held_lock
from paddler_trio.models.cache.cache_verification import note_fetched
from paddler_trio.models.cache.content_hash import ContentHash
from paddler_trio.models.download.transfer import Fetched, RemoteFile
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.pushed.pushed_model import (
    MAX_MANIFEST_BYTES,
    Manifest,
    PushedFile,
    PushedFolder,
    pushed_source,
    read_manifest,
)
from paddler_trio.net.client.download_errors import (
    PushedModelMissingError,
    ServerFailedError,
    SourceMalformedError,
    SourceNotFoundError,
    Subject,
)
from paddler_trio.net.client.http_client import HttpClient
from paddler_trio.net.client.http_exchange import Location, exchange, read_body
from paddler_trio.wire.paddler.desired_state import UrlModel

log = structlog.get_logger("download")


class FetchVerified(Protocol):
    """Transfer a file into ``folder``, compare its hash, publish it."""

    async def __call__(
        self,
        client: HttpClient,
        remote: RemoteFile,
        folder: Path,
        key: str,
        publish: Callable[[Path, Fetched], Path],
    ) -> None: ...


@attrs.frozen(eq=False)
class PushedDownload:
    """Fetches one pushed model.

    Args:
      begin: shows that a file begins: the server, its name, its place among how many, its size.
      watch: shows how far the process is that holds the lock of a file.
    """

    settings: HubSettings
    client: HttpClient
    token: Callable[[Subject], Awaitable[str | None]]
    begin: Callable[[str, str, int, int, int | None], None]
    watch: Callable[[Path, Path], Awaitable[object]]
    fetch_verified: FetchVerified

    async def fetch(self, model: UrlModel) -> tuple[Path, ...]:
        """Return all files that belong to the one that is named; DownloadError."""
        subject = Subject(model.url, is_hub=False)
        source = pushed_source(model.url)
        if source is None:
            raise SourceMalformedError(
                subject, f"{model.url[:200]!r} is not store://sha256/HEX/NAME, as a push prints it"
            )
        folder = PushedFolder(self.settings.pushed_cache, source.manifest_sha256)
        manifest = await trio.to_thread.run_sync(folder.manifest)
        if manifest is None:
            manifest = await self._manifest(folder, subject)
        files = manifest.wanted(source.name)
        if not files:
            raise SourceMalformedError(
                subject, f"the pushed model has no file {source.name!r}, only {_names(manifest)}"
            )
        paths = []
        for index, file in enumerate(files, 1):
            paths.append(await self._file(folder, file, subject, index, len(files)))
        log.info("model file", pushed=source.manifest_sha256, path=str(paths[0]))
        return tuple(paths)

    async def _file(
        self, folder: PushedFolder, file: PushedFile, subject: Subject, index: int, count: int
    ) -> Path:
        with disk_errors(subject):
            path = await trio.to_thread.run_sync(folder.cached, file)
            if path is not None:
                return path
            location = await self._location(f"blobs/sha256/{file.sha256}", subject)
            self.begin(location.url, file.name, index, count, file.size)
            async with held_lock(
                folder.lock(file.name),
                subject,
                self.settings.timeouts,
                lambda: self.watch(folder.ours, folder.ours / file.name),
            ):
                path = await trio.to_thread.run_sync(folder.cached, file)
                if path is not None:
                    return path
                self.begin(location.url, file.name, index, count, file.size)
                remote = RemoteFile(
                    subject=subject,
                    location=location,
                    size_bytes=file.size,
                    expected=ContentHash("sha256", file.sha256),
                    is_named_by_hash=True,
                )
                try:
                    await self.fetch_verified(
                        self.client,
                        remote,
                        folder.ours,
                        file.name,
                        lambda partial, _: folder.publish(partial, file.name),
                    )
                except SourceNotFoundError as error:
                    raise _missing(subject, f"has no {file.name} any more") from error
                await trio.to_thread.run_sync(
                    note_fetched, folder.path / file.name, self.settings, True
                )
        return folder.path / file.name

    async def _manifest(self, folder: PushedFolder, subject: Subject) -> Manifest:
        location = await self._location(f"manifests/sha256/{folder.sha256}", subject)
        self.begin(location.url, "manifest", 1, 1, None)
        manifest = await fetch_manifest(self.client, location, subject, folder.sha256)
        with disk_errors(subject):
            await trio.to_thread.run_sync(folder.keep_manifest, manifest)
        return manifest

    async def _location(self, path: str, subject: Subject) -> Location:
        store = self.settings.store
        if store is None:
            raise PushedModelMissingError(
                subject,
                "it was pushed to a balancer's model store, and the balancer of this agent has "
                "none: start it with --model-store",
            )
        return Location(f"{store}/{path}", await self.token(subject), is_store=True)


async def fetch_manifest(
    client: HttpClient, location: Location, subject: Subject, sha256: str
) -> Manifest:
    """Return the manifest that is named by its hash, from a model store; DownloadError."""
    try:
        async with exchange(client, "GET", location, subject) as answer:
            text = await read_body(answer, subject, MAX_MANIFEST_BYTES)
    except SourceNotFoundError as error:
        raise _missing(subject, "does not have it") from error
    if hashlib.sha256(text).hexdigest() != sha256:
        raise ServerFailedError(subject, "the model store sent another manifest")
    try:
        return await trio.to_thread.run_sync(read_manifest, text)
    except WireError as error:
        raise ServerFailedError(subject, f"the model store sent no manifest: {error}") from error


def _missing(subject: Subject, how: str) -> PushedModelMissingError:
    return PushedModelMissingError(
        subject, f"the balancer's model store {how}: push the model again"
    )


def _names(manifest: Manifest) -> str:
    names = [file.name for file in manifest.all_files]
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
