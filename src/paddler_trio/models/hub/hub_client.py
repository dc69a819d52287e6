"""Ask a hub what it knows about files: their commit, size and hash, and the list of a repository.

The routes and headers are the Hugging Face Hub's: ``HEAD /{repo}/resolve/{revision}/{file}``, whose
answer is not followed to the storage it points to, and
``GET /api/models/{repo}/revision/{revision}?blobs=true``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import attrs
import trio

from paddler_trio.models.cache.content_hash import ContentHash
from paddler_trio.models.hub.hub_cache import is_commit, is_etag, name_problem
from paddler_trio.net.client.download_errors import ServerFailedError, SourceMalformedError, Subject
from paddler_trio.net.client.http_client import HttpClient
from paddler_trio.net.client.http_exchange import Location, exchange, read_body
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel

MAX_LISTING_BYTES: Final = 64 << 20
MAX_LISTED_FILES: Final = 100_000


@attrs.frozen
class HubFile:
    """A file of a repository, at a commit.

    Args:
      etag: the name of its blob: SHA-256 of a large file, else git's SHA-1.
      size_bytes: None if the hub did not announce it.
    """

    commit: str
    etag: str
    size_bytes: int | None

    @property
    def content_hash(self) -> ContentHash | None:
        return ContentHash.of_etag(self.etag)


@attrs.frozen
class HubListing:
    """A repository's paths, in the hub's order, at a commit; ``sizes_bytes`` of those whose size is
    known."""

    commit: str
    files: tuple[str, ...]
    sizes_bytes: Mapping[str, int] = attrs.field(factory=dict, repr=False)


def hub_subject(model: HuggingFaceModel) -> Subject:
    """Return how issues name a hub's file."""
    return Subject(f"{model.repo_id}/{model.revision}/{model.filename}", is_hub=True)


def check_names(model: HuggingFaceModel) -> None:
    """Raise SourceMalformedError unless these are names that can be asked for and stored."""
    problem = name_problem(model.repo_id, model.filename, model.revision)
    if problem is not None:
        raise SourceMalformedError(hub_subject(model), problem)


def file_location(
    endpoint: str, model: HuggingFaceModel, token: str | None, *, is_store: bool = False
) -> Location:
    """Return where the hub serves the file, or a model store in its place."""
    return Location(
        f"{endpoint}/{quote(model.repo_id)}/resolve/{quote(model.revision, safe='')}"
        f"/{quote(model.filename)}",
        token,
        is_store,
    )


async def file_metadata(
    client: HttpClient,
    endpoint: str,
    model: HuggingFaceModel,
    token: str | None,
    *,
    is_store: bool = False,
) -> HubFile:
    """Ask for one file's commit, hash and size; DownloadError."""
    subject = hub_subject(model)
    location = file_location(endpoint, model, token, is_store=is_store)
    async with exchange(client, "HEAD", location, subject, stays_on_origin=True) as answer:
        headers = answer.headers
        commit = headers.get("x-repo-commit", "")
        etag = _plain_etag(headers.get("x-linked-etag") or headers.get("etag") or "")
        size = headers.get("x-linked-size")
        if size is None and "location" not in headers:
            size = headers.get("content-length")
    if not is_commit(commit):
        raise ServerFailedError(
            subject, f"{endpoint} sent no X-Repo-Commit: it is no hub, or a proxy answered"
        )
    if not is_etag(etag):
        raise ServerFailedError(subject, f"{endpoint} sent the ETag {etag[:80]!r}")
    is_number = size is not None and size.isascii() and size.isdigit() and len(size) <= 19
    return HubFile(commit, etag, int(size) if size is not None and is_number else None)


async def list_repository(
    client: HttpClient,
    endpoint: str,
    repo_id: str,
    revision: str,
    token: str | None,
    *,
    max_bytes: int = MAX_LISTING_BYTES,
) -> HubListing:
    """Ask for all paths of a repository at a revision; DownloadError, also for an answer of more
    than ``max_bytes``. It is decoded in a thread."""
    subject = Subject(f"{repo_id}/{revision}", is_hub=True)
    problem = name_problem(repo_id, "any", revision)
    if problem is not None:
        raise SourceMalformedError(subject, problem)
    location = Location(
        f"{endpoint}/api/models/{quote(repo_id)}/revision/{quote(revision, safe='')}?blobs=true",
        token,
    )
    async with exchange(client, "GET", location, subject) as answer:
        body = await read_body(answer, subject, max_bytes)
    listing = await trio.to_thread.run_sync(_listing_in, body)
    if listing is None:
        raise ServerFailedError(subject, f"{endpoint} sent no list of the repository's files")
    return listing


def _listing_in(body: bytes) -> HubListing | None:
    try:
        fields = json.loads(body)
        commit, siblings = fields["sha"], fields["siblings"]
        files = tuple(sibling["rfilename"] for sibling in siblings)
        sizes = {sibling["rfilename"]: _size_in(sibling) for sibling in siblings}
        is_listing = is_commit(commit) and all(isinstance(file, str) for file in files)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not is_listing or len(files) > MAX_LISTED_FILES:
        return None
    known = {path: size for path, size in sizes.items() if size is not None}
    return HubListing(commit, files, known)


def _size_in(sibling: Mapping[str, object]) -> int | None:
    """Return the size of the file itself, also where git has a pointer to it."""
    large = sibling.get("lfs")
    size = large.get("size") if isinstance(large, dict) else sibling.get("size")
    return size if type(size) is int and 0 <= size < 1 << 63 else None


def _plain_etag(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')
