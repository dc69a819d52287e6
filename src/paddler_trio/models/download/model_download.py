"""Turn a desired model into verified files on this machine.

    names checked -> cached? -> the hub's metadata -> cached? -> lock, waited for -> cached? ->
    transfer -> hash compared -> renamed into place -> linked, ref written

Files are hits for ``huggingface_hub`` and llama.cpp, and theirs are hits here. Two agents on one
host share one download: the second one waits on the lock and shows the first one's progress.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urldefrag, urlsplit, urlunsplit

import attrs
import structlog
import trio

from paddler_trio.errors import ConfigurationError
from paddler_trio.models.cache.cache_errors import disk_errors, one_error
from paddler_trio.models.cache.cache_place import held_lock
from paddler_trio.models.cache.cache_verification import note_fetched
from paddler_trio.models.cache.content_hash import ContentHash
from paddler_trio.models.cache.url_cache import (
    UrlFile,
    UrlRecord,
    url_journals,
    url_text_for_logs,
)
from paddler_trio.models.download.download_progress import WAITING, DownloadProgress, ProgressMeter
from paddler_trio.models.download.partial_file import PartialFile, read_journal, space_promised
from paddler_trio.models.download.transfer import (
    Fetched,
    LargeFileError,
    RemoteFile,
    Transfer,
    TransferLimits,
)
from paddler_trio.models.hub.hub_cache import HubCache, RepositoryCache, size_of
from paddler_trio.models.hub.hub_choice import part_names
from paddler_trio.models.hub.hub_client import (
    MAX_LISTING_BYTES,
    HubFile,
    HubListing,
    check_names,
    file_location,
    file_metadata,
    hub_subject,
    list_repository,
)
from paddler_trio.models.hub.hub_settings import HubSettings, open_client_of
from paddler_trio.models.model_reference import check_magic, is_gguf, read_start
from paddler_trio.models.pushed.pushed_download import PushedDownload
from paddler_trio.models.pushed.pushed_model import is_pushed, pushed_journals
from paddler_trio.net.client.download_errors import (
    AccessDeniedError,
    CacheFullError,
    ContentMismatchError,
    DownloadError,
    NotAModelError,
    ServerFailedError,
    ServerUnreachableError,
    SourceMalformedError,
    Subject,
)
from paddler_trio.net.client.http_client import HttpClient
from paddler_trio.net.client.http_exchange import Location
from paddler_trio.system.durable import sync
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, UrlModel

log = structlog.get_logger("download")

SMALL_BYTES: Final = 64 << 20
"""Files up to this size are fetched here in any case: it takes a moment, and starting a process
does too."""


@attrs.frozen(kw_only=True)
class TransferJob:
    """The transfer of one file, for another process to do. Its lock is held by who gives it.

    Args:
      folder, key: where the partial file is.
    """

    settings: HubSettings
    limits: TransferLimits
    remote: RemoteFile
    folder: Path
    key: str


CarryOut = Callable[[TransferJob, ProgressMeter], Awaitable[Fetched]]
"""Does a job and counts its bytes; DownloadError. Cancelled, it keeps what is there of the file."""


@attrs.frozen
class FetchedModel:
    """A model's files on this machine.

    Args:
      path: what to load; the first of several parts.
      files: all of them.
      commit: of the hub's repository; None for a URL.
    """

    path: Path
    files: tuple[Path, ...]
    commit: str | None


@attrs.define(eq=False)
class ModelDownload:
    """Fetches models, one at a time; make one per task.

    Args:
      publish: gets the progress, at most four times a second; None when nothing is under way.
      claim: called before bytes are written, in a thread, with how many bytes the file will have;
        CacheFullError if they may not be written.
      on_change, on_void: see :class:`Transfer`.
      elsewhere: transfers files over SMALL_BYTES; None has this process do it.
    """

    settings: HubSettings
    publish: Callable[[DownloadProgress | None], None]
    limits: TransferLimits = attrs.field(factory=TransferLimits)
    claim: Callable[[Subject, int], None] = lambda subject, size_bytes: None
    on_change: Callable[[Transfer], None] = lambda transfer: None
    on_void: Callable[[], None] = lambda: None
    elsewhere: CarryOut | None = None
    _meter: ProgressMeter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._meter = ProgressMeter(self.publish)

    @property
    def received_bytes(self) -> int:
        """The bytes of files that came from the network in the life of this object."""
        return self._meter.received_bytes

    async def fetch(self, model: HuggingFaceModel | UrlModel) -> FetchedModel:
        """Return the model's files, fetched unless they are cached; DownloadError.

        Cancellation: takes well under a second and keeps what is there of a file.
        """
        async with self._under_way() as client:
            if isinstance(model, UrlModel):
                return await self._url(client, model)
            return await self._hub(client, model)

    async def fetch_file(self, model: HuggingFaceModel | UrlModel) -> Path:
        """Return the one file that ``model`` names, and no other part of its model; else as
        ``fetch``."""
        async with self._under_way() as client:
            if isinstance(model, UrlModel):
                subject = Subject(model.url, is_hub=False)
                _checked_url(model, subject)
                return await self._url_file(client, model.url, subject, 1, 1)
            check_names(model)
            path, commit = await self._hub_file(client, model, 1, 1)
            await trio.to_thread.run_sync(
                _remember, self._repository(model), model.revision, commit
            )
            return path

    @asynccontextmanager
    async def _under_way(self) -> AsyncIterator[HttpClient]:
        """Open a client, and show the progress of what is done with it."""
        settings = self.settings
        try:
            async with (
                one_error() as nursery,
                open_client_of(settings) as client,
            ):
                nursery.start_soon(self._meter.run, name="download progress")
                yield client
                nursery.cancel_scope.cancel(reason="the download has ended")
        finally:
            self._meter.end()

    async def listing(
        self, repo_id: str, revision: str, *, max_bytes: int = MAX_LISTING_BYTES
    ) -> HubListing:
        """Return the repository's paths at a commit: the hub's, or the cached ones if it cannot be
        asked, or answers with more than ``max_bytes``; DownloadError."""
        subject = Subject(f"{repo_id}/{revision}", is_hub=True)

        def cached() -> HubListing | None:
            repository = HubCache(self.settings.cache).repository(repo_id)
            commit = repository.commit_of(revision)
            files = [] if commit is None else repository.files(commit)
            return HubListing(commit, tuple(files)) if commit is not None and files else None

        if not self.settings.offline:
            token = await self._token(subject)
            try:
                async with open_client_of(self.settings) as client:
                    return await list_repository(
                        client,
                        self.settings.endpoint,
                        repo_id,
                        revision,
                        token,
                        max_bytes=max_bytes,
                    )
            except (ServerUnreachableError, ServerFailedError):
                listing = await trio.to_thread.run_sync(cached)
                if listing is None:
                    raise
                return listing
        listing = await trio.to_thread.run_sync(cached)
        if listing is None:
            raise _offline(subject)
        return listing

    @property
    def _is_through_store(self) -> bool:
        return self.settings.url_mirror is not None

    # -------------------------------------------------------------------- hub

    async def _hub(self, client: HttpClient, model: HuggingFaceModel) -> FetchedModel:
        check_names(model)
        names = part_names(model.filename)
        files = []
        revision, commit = model.revision, ""
        for index, name in enumerate(names, 1):
            part = attrs.evolve(model, filename=name, revision=revision)
            path, commit = await self._hub_file(client, part, index, len(names))
            revision = commit  # all parts of one commit
            files.append(path)
        if revision != model.revision:
            repository = self._repository(model)
            await trio.to_thread.run_sync(_remember, repository, model.revision, commit)
        log.info("model file", repository=model.repo_id, file=model.filename, commit=commit)
        return FetchedModel(files[0], tuple(files), commit)

    async def _hub_file(
        self, client: HttpClient, model: HuggingFaceModel, index: int, count: int
    ) -> tuple[Path, str]:
        subject, repository = hub_subject(model), self._repository(model)
        cached = await trio.to_thread.run_sync(repository.cached, model.revision, model.filename)
        if cached is not None and cached[1] == model.revision:
            return cached  # a commit never changes
        if self.settings.offline:
            if cached is None:
                raise _offline(subject)
            return cached
        try:
            token = await self._token(subject)
            known = await file_metadata(
                client, self.settings.endpoint, model, token, is_store=self._is_through_store
            )
        except (ServerUnreachableError, ServerFailedError, AccessDeniedError) as error:
            if cached is None or self._is_through_store:  # the source may be asked yet
                raise
            log.warning("the cached file is used", file=subject.model_path, reason=error.cause)
            return cached
        pointer = repository.pointer(known.commit, model.filename)
        with disk_errors(subject):
            size_bytes = await trio.to_thread.run_sync(size_of, pointer)
            if _is_whole(size_bytes, known):
                return pointer, known.commit
            self._begin(self.settings.endpoint, model.filename, index, count, known.size_bytes)
            blob = repository.blob(known.etag)
            async with held_lock(
                repository.lock(known.etag),
                subject,
                self.settings.timeouts,
                lambda: self._watch(repository.ours, blob),
            ):
                is_fetched = not await trio.to_thread.run_sync(_blob_is_whole, repository, known)
                if is_fetched:
                    endpoint, is_store = self.settings.endpoint, self._is_through_store
                    self._begin(endpoint, model.filename, index, count, known.size_bytes)
                    remote = RemoteFile(
                        subject=subject,
                        location=file_location(endpoint, model, token, is_store=is_store),
                        size_bytes=known.size_bytes,
                        expected=known.content_hash,
                        is_named_by_hash=known.content_hash is not None,
                    )
                    await self._fetch_verified(
                        client,
                        remote,
                        repository.ours,
                        known.etag,
                        lambda partial, _: repository.publish(partial, known.etag),
                    )
                path = await trio.to_thread.run_sync(
                    repository.link, known.etag, known.commit, model.filename
                )
                if is_fetched:
                    is_verified = known.content_hash is not None
                    await trio.to_thread.run_sync(note_fetched, path, self.settings, is_verified)
        return path, known.commit

    def _repository(self, model: HuggingFaceModel) -> RepositoryCache:
        return HubCache(self.settings.cache).repository(model.repo_id)

    async def _token(self, subject: Subject) -> str | None:
        try:
            return await trio.to_thread.run_sync(self.settings.token)
        except ConfigurationError as error:
            raise AccessDeniedError(subject, str(error)) from error

    # -------------------------------------------------------------------- URL

    async def _url(self, client: HttpClient, model: UrlModel) -> FetchedModel:
        subject = Subject(model.url, is_hub=False)
        if is_pushed(model.url):
            pushed = await self._pushed(client, model)
            return FetchedModel(pushed[0], pushed, None)
        parts = _checked_url(model, subject)
        before, slash, last = parts.path.rpartition("/")
        names = (last,) if parts.query else part_names(last)
        files = [
            await self._url_file(
                client,
                urlunsplit(parts._replace(path=f"{before}{slash}{name}")),
                subject,
                index,
                len(names),
            )
            for index, name in enumerate(names, 1)
        ]
        log.info("model file", url=url_text_for_logs(model.url), path=str(files[0]))
        return FetchedModel(files[0], tuple(files), None)

    async def _url_file(
        self, client: HttpClient, url: str, subject: Subject, index: int, count: int
    ) -> Path:
        address, fragment = urldefrag(url)
        name, _, value = fragment.partition("=")
        expected = ContentHash.of_etag(value.lower()) if name == "sha256" else None
        file = UrlFile.of(self.settings.url_cache, address)
        with disk_errors(subject):
            if await trio.to_thread.run_sync(_url_is_cached, file, expected):
                return file.path
            if self.settings.offline:
                raise _offline(subject)
            location = await self._url_location(url, subject)
            self._begin(location.url, file.name, index, count, None)
            async with held_lock(
                file.lock,
                subject,
                self.settings.timeouts,
                lambda: self._watch(file.ours, file.ours / file.name),
            ):
                if await trio.to_thread.run_sync(_url_is_cached, file, expected):
                    return file.path
                await trio.to_thread.run_sync(_drop_no_model, file)
                self._begin(location.url, file.name, index, count, None)
                remote = RemoteFile(
                    subject=subject, location=location, expected=expected, is_model=True
                )
                await self._fetch_verified(
                    client,
                    remote,
                    file.ours,
                    file.name,
                    lambda partial, fetched: file.publish(
                        partial,
                        UrlRecord(
                            fetched.size_bytes,
                            fetched.hash,
                            fetched.etag,
                            url_text_for_logs(address),
                        ),
                    ),
                )
                await trio.to_thread.run_sync(
                    note_fetched, file.path, self.settings, expected is not None
                )
        return file.path

    async def _pushed(self, client: HttpClient, model: UrlModel) -> tuple[Path, ...]:
        return await PushedDownload(
            settings=self.settings,
            client=client,
            token=self._token,
            begin=self._begin,
            watch=self._watch,
            fetch_verified=self._fetch_verified,
        ).fetch(model)

    async def _url_location(self, url: str, subject: Subject) -> Location:
        """Return where ``url`` is asked for: there, or at the model store."""
        mirrored = self.settings.mirrored(url)
        if mirrored is None:
            return Location(urldefrag(url)[0])
        return Location(mirrored, await self._token(subject), is_store=True)

    # ------------------------------------------------------------------- both

    async def _fetch_verified(
        self,
        client: HttpClient,
        remote: RemoteFile,
        folder: Path,
        key: str,
        publish: Callable[[Path, Fetched], Path],
    ) -> None:
        """Transfer into ``folder``, compare the hash, publish. A mismatch is fetched anew once."""
        is_second = False
        while True:
            partial = await trio.to_thread.run_sync(
                lambda: PartialFile.open(folder, key, knows_hash=remote.expected is not None)
            )
            try:
                fetched = await self._transfer(client, remote, partial, folder, key)
                if remote.expected in {None, fetched.hash}:
                    if remote.is_model:
                        await trio.to_thread.run_sync(_check_begins_as_model, partial, remote)
                    self._meter.begin_phase("saving")
                    # may take seconds; what comes after it finds nothing left to write
                    await trio.to_thread.run_sync(sync, partial.path, abandon_on_cancel=True)
                    await trio.to_thread.run_sync(publish, partial.path, fetched)
                    await trio.to_thread.run_sync(
                        lambda journal: journal.unlink(missing_ok=True), partial.journal_path
                    )
                    return
                self.on_void()
                await trio.to_thread.run_sync(_set_aside, partial)
            finally:
                partial.close()
            assert remote.expected is not None
            cause = (
                f"what arrived has the {remote.expected.kind} hash {fetched.hash.hex}, "
                f"expected is {remote.expected.hex}"
            )
            log.error("download quarantined", reason=cause)
            if is_second:
                raise ContentMismatchError(remote.subject, f"{cause}, twice")
            is_second = True
            remote.location.resolved = None

    async def _transfer(
        self, client: HttpClient, remote: RemoteFile, partial: PartialFile, folder: Path, key: str
    ) -> Fetched:
        try:
            most_bytes = None if self.elsewhere is None else SMALL_BYTES
            return await self._transfer_of(client, remote, partial, most_bytes).run()
        except LargeFileError:
            partial.close()
        assert self.elsewhere is not None
        job = TransferJob(
            settings=self.settings, limits=self.limits, remote=remote, folder=folder, key=key
        )
        return await self.elsewhere(job, self._meter)

    async def carry_out(self, remote: RemoteFile, folder: Path, key: str) -> Fetched:
        """Do what a TransferJob asks for; DownloadError."""

        def opened() -> PartialFile:
            return PartialFile.open(folder, key, knows_hash=remote.expected is not None)

        with disk_errors(remote.subject):
            partial = await trio.to_thread.run_sync(opened)
            try:
                async with open_client_of(self.settings) as client:
                    return await self._transfer_of(client, remote, partial, None).run()
            finally:
                partial.close()

    def _transfer_of(
        self,
        client: HttpClient,
        remote: RemoteFile,
        partial: PartialFile,
        most_bytes: int | None,
    ) -> Transfer:
        return Transfer(
            client=client,
            remote=remote,
            partial=partial,
            meter=self._meter,
            limits=self.limits,
            check_space=self._space_check(partial, remote.subject),
            most_bytes=most_bytes,
            on_change=self.on_change,
            on_void=self.on_void,
        )

    @property
    def here(self) -> tuple[int, int | None]:
        """The number of bytes that are here of the file that is fetched, and how many it has."""
        return self._meter.current_bytes, self._meter.total_bytes

    def _space_check(self, partial: PartialFile, subject: Subject) -> Callable[[int], None]:
        def check(needed: int) -> None:
            held = partial.path.stat().st_blocks * 512
            total = held + needed
            if partial.journal is not None:
                total = min(total, partial.journal.size_bytes)
            self.claim(subject, total)
            place = os.statvfs(partial.path.parent)
            device = partial.path.parent.stat().st_dev
            journals = [
                *HubCache(self.settings.cache).journals(),
                *url_journals(self.settings.url_cache),
                *pushed_journals(self.settings.pushed_cache),
            ]
            promised = space_promised(journals, except_for=partial.journal_path, device=device)
            free = place.f_bavail * place.f_frsize
            if free - promised < needed:
                others = f", {promised} of them for other downloads" if promised else ""
                raise CacheFullError(
                    subject,
                    f"{needed} bytes are needed in {partial.path.parent}, {free} are free{others}",
                )

        return check

    def _begin(
        self, source: str, filename: str, index: int, count: int, total_bytes: int | None
    ) -> None:
        self._meter.begin(
            DownloadProgress(
                source=urlsplit(source).hostname or source,
                filename=filename.rpartition("/")[2],
                file_index=index,
                file_count=count,
                total_bytes=total_bytes,
            )
        )

    async def _watch(self, ours: Path, blob: Path) -> object:
        """Show how far the process is that holds the lock; the answer changes as it works."""
        self._meter.begin_phase(WAITING)

        def look() -> tuple[int, int | None] | None:
            journal = read_journal(ours / f"{blob.name}.journal")
            if journal is not None:
                return journal.here_bytes, journal.size_bytes
            sizes = [  # huggingface_hub's own
                size
                for path in blob.parent.glob(f"{blob.name}.*incomplete")
                if (size := size_of(path)) is not None
            ]
            return (max(sizes), None) if sizes else None

        seen = await trio.to_thread.run_sync(look)
        if seen is not None:
            self._meter.set(*seen)
        return seen


async def wait_for_retry(
    settings: HubSettings, delay_s: float, fingerprint: str, poll_s: float = 2.0
) -> None:
    """Return after ``delay_s``, or as soon as the token is not the one with ``fingerprint``, which
    was taken before the attempt that failed."""
    with trio.move_on_after(delay_s):
        while await trio.to_thread.run_sync(settings.token_fingerprint) == fingerprint:  # noqa: ASYNC110
            await trio.sleep(poll_s)  # the file system sends no event


def _checked_url(model: UrlModel, subject: Subject) -> SplitResult:
    """Return the URL's parts; SourceMalformedError."""
    try:
        parts = urlsplit(model.url)
    except ValueError as error:
        raise SourceMalformedError(subject, f"it is no URL: {error}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SourceMalformedError(subject, "it is no http or https URL")
    return parts


def _is_whole(size_bytes: int | None, known: HubFile) -> bool:
    return size_bytes is not None and known.size_bytes in {None, size_bytes}


def _blob_is_whole(repository: RepositoryCache, known: HubFile) -> bool:
    """Return whether the blob can be used; what stands in its place is quarantined."""
    blob = repository.blob(known.etag)
    if _is_whole(size_of(blob), known):
        return True
    if blob.is_symlink() or blob.exists():
        log.warning("blob quarantined", path=str(blob), expected_bytes=known.size_bytes)
        repository.quarantine(blob)
    return False


def _url_is_cached(file: UrlFile, expected: ContentHash | None) -> bool:
    record = file.cached()
    return record is not None and expected in {None, record.hash} and is_gguf(file.path)


def _drop_no_model(file: UrlFile) -> None:
    """Move away what a version of before kept of an address that led to no model."""
    if file.path.is_file() and not is_gguf(file.path):
        file.quarantine()


def _remember(repository: RepositoryCache, revision: str, commit: str) -> None:
    try:
        repository.remember(revision, commit)
    except OSError as error:  # a read-only cache: the files are there all the same
        log.debug("the ref is not written", reason=error.strerror)


def _check_begins_as_model(partial: PartialFile, remote: RemoteFile) -> None:
    """NotAModelError; then nothing of the file stays. It may have been begun when its address led
    to something else, and by a version that kept anything."""
    try:
        check_magic(read_start(partial.path), remote.subject)
    except NotAModelError:
        partial.discard()
        raise


def _set_aside(partial: PartialFile) -> None:
    """Keep what has the wrong hash, to be looked at; the next one replaces it."""
    partial.path.replace(partial.path.with_suffix(".quarantined"))
    partial.discard()


def _offline(subject: Subject) -> DownloadError:
    return ServerUnreachableError(subject, "HF_HUB_OFFLINE is set and the file is not cached")
