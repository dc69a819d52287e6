"""The Hugging Face cache: where a file lies, and how one gets there.

    models--org--name/
      blobs/<etag>                        the bytes; a large file's etag is its SHA-256
      snapshots/<commit>/<file>           a relative link to the blob
      refs/<revision>                     the commit that a branch or a tag was last
      .paddler-trio/                      downloads under way and what is quarantined, ours alone
    .locks/models--org--name/<etag>.lock  the lock of a blob

What ``huggingface_hub`` or llama.cpp fetched is found here, and they find what we fetch. Names
come from operators and servers: none of them leaves its folder. Everything blocks; OSErrors pass
through.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.models.cache.content_hash import ContentHash
from paddler_trio.models.download.partial_file import remove
from paddler_trio.system.durable import durably_replace, write_durably

OURS: Final = ".paddler-trio"
MAX_FILE_NAME_BYTES: Final = 255
_REPO_ID = re.compile(r"(?:[\w.-]{1,96}/)?[\w.-]{1,96}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ETAG = re.compile(r"[0-9A-Za-z_.-]{1,200}")
_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This file is a cache directory tag created by huggingface_hub.\n"
    "# For information about cache directory tags see https://bford.info/cachedir/\n"
)


@attrs.frozen
class HubCache:
    """See the module docstring.

    Args:
      root: the folder with the ``models--…`` folders.
    """

    root: Path

    def repository(self, repo_id: str) -> RepositoryCache:
        return RepositoryCache(self.root, repo_id)

    def journals(self) -> list[Path]:
        """Return the journals of every download under way, or left."""
        return list(self.root.glob(f"models--*/{OURS}/*.journal"))


@attrs.frozen
class RepositoryCache:
    """One repository's part of the cache; ``repo_id`` has passed :func:`name_problem`."""

    root: Path
    repo_id: str

    @property
    def folder(self) -> Path:
        return self.root / self._folder_name

    @property
    def ours(self) -> Path:
        return self.folder / OURS

    @property
    def _folder_name(self) -> str:
        return "--".join(("models", *self.repo_id.split("/")))

    def blob(self, etag: str) -> Path:
        return self.folder / "blobs" / etag

    def lock(self, etag: str) -> Path:
        return self.root / ".locks" / self._folder_name / f"{etag}.lock"

    def pointer(self, commit: str, filename: str) -> Path:
        return self.folder / "snapshots" / commit / filename

    def cached(self, revision: str, filename: str) -> tuple[Path, str] | None:
        """Return the file as it was last fetched for this revision, and its commit; None if it was
        not."""
        commit = self.commit_of(revision)
        if commit is None:
            return None
        pointer = self.pointer(commit, filename)
        return (pointer, commit) if size_of(pointer) is not None else None

    def commit_of(self, revision: str) -> str | None:
        """Return the commit that ``revision`` was when it was last seen; in a cache that was made
        by hand any name of a snapshot, as for the hub's own client."""
        if is_commit(revision):
            return revision
        try:
            commit = (self.folder / "refs" / revision).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return commit if "/" not in commit and path_problem(commit) is None else None

    def files(self, commit: str) -> list[str]:
        """Return the paths of what is cached of a commit, in order."""
        snapshot = self.folder / "snapshots" / commit
        return sorted(
            path.relative_to(snapshot).as_posix()
            for path in snapshot.rglob("*")
            if size_of(path) is not None
        )

    def remember(self, revision: str, commit: str) -> None:
        """Note that ``revision`` is ``commit`` now."""
        if revision == commit or self.commit_of(revision) == commit:
            return
        write_durably(self.folder / "refs" / revision, commit.encode())

    def link(self, etag: str, commit: str, filename: str) -> Path:
        """Make the snapshot's file lead to the blob; returns the snapshot's file."""
        pointer, blob = self.pointer(commit, filename), self.blob(etag)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        fresh = pointer.with_name(f".{etag[:16]}.fresh")
        remove(fresh)
        try:
            fresh.symlink_to(os.path.relpath(blob, pointer.parent))
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}:
                raise
            durably_replace(blob, pointer)  # no links here: files lie in the snapshots themselves
        else:
            fresh.replace(pointer)
        return pointer

    def publish(self, partial: Path, etag: str) -> Path:
        """Make a finished and verified download the blob."""
        blob = self.blob(etag)
        blob.parent.mkdir(parents=True, exist_ok=True)
        durably_replace(partial, blob)
        tag = self.root / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_text(_TAG)
        return blob

    def quarantine(self, path: Path) -> Path:
        """Move what must not be loaded out of the way; the last one of each name is kept."""
        return quarantined(path, self.ours)

    def expected_hash(self, pointer: Path) -> ContentHash | None:
        """Return what the content of a snapshot's file must hash to: the name of its blob."""
        try:
            blob = (pointer.parent / pointer.readlink()).name
        except OSError:
            return None
        return ContentHash.of_etag(blob)


def name_problem(repo_id: str, filename: str, revision: str) -> str | None:
    """Return why these cannot name a file of a repository; None if they can."""
    if _REPO_ID.fullmatch(repo_id) is None or "--" in repo_id or ".." in repo_id:
        return f"{repo_id[:200]!r} is no name of a repository"
    for what, text in (("file", filename), ("revision", revision)):
        problem = path_problem(text)
        if problem is not None:
            return f"{text[:200]!r} is no name of a {what}: {problem}"
    return None


def path_problem(path: str) -> str | None:
    """Return why ``path`` must not be joined to a folder's; None if it may."""
    segments = path.split("/")
    if any(segment in {"", ".", ".."} for segment in segments):
        return "it has an empty part, or . or .."
    if "\0" in path or "\\" in path:
        return "it has a NUL or a backslash"
    if any(len(segment.encode(errors="replace")) > MAX_FILE_NAME_BYTES for segment in segments):
        return f"a part is over {MAX_FILE_NAME_BYTES} bytes"
    return None


def is_commit(text: str) -> bool:
    return _COMMIT.fullmatch(text) is not None


def is_etag(text: str) -> bool:
    """Return whether it can be the name of a blob."""
    return _ETAG.fullmatch(text) is not None and text.strip(".") != ""


def size_of(path: Path) -> int | None:
    """Return the size of the regular file that ``path`` leads to; None if it leads to none."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def quarantined(path: Path, folder: Path) -> Path:
    """Move ``path``, whatever it is, into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{path.name[:200]}.quarantined"
    if target.exists() and (target.is_dir() or path.is_dir()):
        target = folder / f"{path.name[:200]}.{path.lstat().st_ino}.quarantined"
    path.replace(target)
    return target
