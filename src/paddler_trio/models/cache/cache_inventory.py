"""List what lies in a machine's caches: models, downloads under way or left, and what is
quarantined.

Of the Hugging Face cache only GGUF files are listed: it is shared with other programs, and all else
is theirs. Everything blocks; ``check`` is called between files and may raise.

Find the models of a cache that a source selects; nothing is read but links that are followed.

A source without ``@revision`` selects all revisions, a repository all of its files, with a
quantisation those of it. What ``model list`` prints as a source selects exactly that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.models.cache.cache_place import CachePlace, is_locked, place_of
from paddler_trio.models.cache.url_cache import UrlFile
from paddler_trio.models.download.partial_file import boot_id, read_journal
from paddler_trio.models.hub.hub_cache import OURS, RepositoryCache, size_of
from paddler_trio.models.hub.hub_choice import is_quantised, part_names
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.model_reference import (
    DEFAULT_REVISION,
    HubRepository,
    UnknownSourceError,
    reference_of,
    text_of,
)
from paddler_trio.models.pushed.pushed_model import SCHEME, PushedFolder, pushed_folders
from paddler_trio.wire.paddler.desired_state import (
    DesiredModel,
    HuggingFaceModel,
    LocalToAgent,
    NoModel,
    UrlModel,
)

MAX_LISTED: Final = 2000
MAX_FILES: Final = 100_000
"""Looked at; a cache with more is cut short."""


@attrs.frozen(kw_only=True)
class HubOrigin:
    """The origin of a file of the Hugging Face cache.

    Args:
      revisions: the branches and tags that were this commit when they were last seen.
    """

    repo_id: str
    commit: str
    filename: str
    revisions: tuple[str, ...]


@attrs.frozen(kw_only=True)
class CachedModel:
    """A model that is here, all of its parts or some.

    Args:
      source: its text form, of a URL without what may be secret.
      places: of the parts that are here, in order.
      part_count: how many it has.
      origin: None unless a hub served it.
      used_s: the last use of a part, in Unix time; None if no agent fetched or used it.
      verified_s: the same, of the part for which it is longest ago; None if not all ever were.
      in_use: a process on this machine needs it.
    """

    cache: str
    source: str
    places: tuple[CachePlace, ...]
    part_count: int
    size_bytes: int
    origin: HubOrigin | None
    used_s: float | None
    verified_s: float | None
    in_use: bool

    @property
    def path(self) -> Path:
        return self.places[0].path

    @property
    def is_whole(self) -> bool:
        return len(self.places) == self.part_count


@attrs.frozen(kw_only=True)
class Leftover:
    """Bytes that are no model, yet or any more.

    Args:
      state: ``arriving``, ``partial`` (nobody fetches it now) or ``quarantined``.
      size_bytes: on the disk; total_bytes: of the whole file, None if nobody knows.
      modified_s: in Unix time.
      paths: what makes it up; lock: held by whoever fetches it, None if nobody would.
    """

    cache: str
    source: str
    state: str
    paths: tuple[Path, ...]
    lock: Path | None
    size_bytes: int
    total_bytes: int | None
    modified_s: float


@attrs.frozen
class Inventory:
    """The caches of one machine. ``left_out``: how many models are not in the list."""

    models: tuple[CachedModel, ...]
    leftovers: tuple[Leftover, ...]
    left_out: int = 0


def take_inventory(settings: HubSettings, check: Callable[[], None] = lambda: None) -> Inventory:
    """Look at all caches."""
    models: list[CachedModel] = []
    leftovers: list[Leftover] = []
    left_out = 0
    for found in _everything(settings, check):
        if isinstance(found, Leftover):
            if len(leftovers) < MAX_LISTED:
                leftovers.append(found)
        elif len(models) < MAX_LISTED:
            models.append(found)
        else:
            left_out += 1
    return Inventory(tuple(models), tuple(leftovers), left_out)


def cache_ids(settings: HubSettings) -> tuple[str, ...]:
    """Return what names this machine's caches: the same for all processes that share them."""
    return tuple(
        cache_id(root) for root in (settings.cache, settings.url_cache, settings.pushed_cache)
    )


def cache_id(root: Path) -> str:
    """Return 16 hex digits, from the boot of this machine and the folder's identity."""
    try:
        status = root.stat()
        identity = f"{status.st_dev}:{status.st_ino}"
    except OSError:  # not made yet
        identity = str(root.absolute())
    return hashlib.sha256(f"{boot_id()}:{identity}".encode()).hexdigest()[:16]


def _everything(
    settings: HubSettings, check: Callable[[], None]
) -> Iterator[CachedModel | Leftover]:
    hub, urls, pushed = cache_ids(settings)
    looked_at = 0
    for hub_folder in sorted(settings.cache.glob("models--*")):
        names = hub_folder.name.split("--")
        if len(names) not in {2, 3} or looked_at > MAX_FILES:
            continue
        repository = RepositoryCache(settings.cache, "/".join(names[1:]))
        check()
        for found in _of_repository(hub, repository, settings, check):
            looked_at += 1
            yield found
        yield from _leftovers(hub, f"hf:{repository.repo_id}", repository.ours, repository.lock)
    for ours in sorted(settings.url_cache.glob(f"*/*/{OURS}")):
        if looked_at > MAX_FILES:
            break
        check()
        yield from _of_url_folder(urls, ours.parent, settings)
        looked_at += 1
        source = f"{ours.parent.parent.name}/{ours.parent.name}"
        yield from _leftovers(urls, source, ours, partial(_url_lock, ours))
    for folder in pushed_folders(settings.pushed_cache)[:MAX_FILES]:
        check()
        yield from _of_pushed_folder(pushed, folder, settings)
        source = f"{SCHEME}sha256/{folder.sha256}"
        yield from _leftovers(pushed, source, folder.ours, folder.lock)


def _of_pushed_folder(
    cache: str, folder: PushedFolder, settings: HubSettings
) -> Iterator[CachedModel]:
    manifest = folder.manifest()
    if manifest is None:
        return
    groups = [manifest.files, *([(manifest.projection,)] if manifest.projection else [])]
    for files in groups:
        here = [path for file in files if (path := folder.cached(file)) is not None]
        if here:
            source = manifest.source(files[0])
            yield _model(cache, source, here, len(files), None, settings)


def _url_lock(ours: Path, key: str) -> Path:
    return ours / f"{key}.lock"


def _of_repository(
    cache: str, repository: RepositoryCache, settings: HubSettings, check: Callable[[], None]
) -> Iterator[CachedModel]:
    revisions = _revisions(repository)
    for snapshot in sorted((repository.folder / "snapshots").glob("*")):
        groups: dict[str, list[Path]] = {}
        for path in sorted(snapshot.rglob("*.gguf"))[:MAX_FILES]:
            check()
            name = path.relative_to(snapshot).as_posix()
            if size_of(path) is not None:
                groups.setdefault(part_names(name)[0], []).append(path)
        for first, paths in groups.items():
            origin = HubOrigin(
                repo_id=repository.repo_id,
                commit=snapshot.name,
                filename=first,
                revisions=tuple(revisions.get(snapshot.name, ())),
            )
            source = f"hf:{repository.repo_id}/{first}@{snapshot.name}"
            yield _model(cache, source, paths, len(part_names(first)), origin, settings)


def _revisions(repository: RepositoryCache) -> dict[str, list[str]]:
    refs = repository.folder / "refs"
    found: dict[str, list[str]] = {}
    for path in sorted(refs.rglob("*"))[:1000]:
        name = path.relative_to(refs).as_posix()
        commit = repository.commit_of(name) if path.is_file() else None
        if commit is not None:
            found.setdefault(commit, []).append(name)
    return found


def _of_url_folder(cache: str, folder: Path, settings: HubSettings) -> Iterator[CachedModel]:
    groups: dict[str, list[UrlFile]] = {}
    for record in sorted((folder / OURS).glob("*.json"))[:MAX_FILES]:
        file = UrlFile(folder, record.name.removesuffix(".json"))
        if file.cached() is not None:
            groups.setdefault(part_names(file.name)[0], []).append(file)
    for first, files in groups.items():
        known = files[0].cached()
        source = (known and known.url) or f"{folder.parent.name}/{folder.name}/{first}"
        paths = [file.path for file in files]
        yield _model(cache, source, paths, len(part_names(first)), None, settings)


def _model(
    cache: str,
    source: str,
    paths: list[Path],
    part_count: int,
    origin: HubOrigin | None,
    settings: HubSettings,
) -> CachedModel:
    places = tuple(place for path in paths if (place := place_of(path, settings)) is not None)
    used = [at_s for place in places if (at_s := place.used_s()) is not None]
    verified = [place.verified_s() for place in places]
    return CachedModel(
        cache=cache,
        source=source,
        places=places,
        part_count=part_count,
        size_bytes=sum(size_of(place.path) or 0 for place in places),
        origin=origin,
        used_s=max(used, default=None),
        verified_s=None if None in verified else min(at_s for at_s in verified if at_s is not None),
        in_use=bool(places) and places[0].is_in_use(),
    )


def _leftovers(
    cache: str, source: str, ours: Path, lock_of: Callable[[str], Path]
) -> Iterator[Leftover]:
    for path in sorted(ours.glob("*.partial"))[:MAX_FILES]:
        key = path.name.removesuffix(".partial")
        journal_path = path.with_name(f"{key}.journal")
        journal = read_journal(journal_path)
        lock = lock_of(key)
        yield from _leftover(
            cache,
            f"{source}: {key}",
            "arriving" if is_locked(lock) else "partial",
            (path, journal_path),
            lock,
            None if journal is None else (journal.here_bytes, journal.size_bytes),
        )
    for path in sorted(ours.glob("*.quarantined"))[:MAX_FILES]:
        name = path.name.removesuffix(".quarantined")
        yield from _leftover(cache, f"{source}: {name}", "quarantined", (path,), None, None)


def _leftover(
    cache: str,
    source: str,
    state: str,
    paths: tuple[Path, ...],
    lock: Path | None,
    here: tuple[int, int] | None,
) -> Iterator[Leftover]:
    try:
        status = paths[0].lstat()
    except OSError:
        return  # it ended while we looked
    yield Leftover(
        cache=cache,
        source=source,
        state=state,
        paths=paths,
        lock=lock,
        size_bytes=status.st_blocks * 512 if here is None else here[0],
        total_bytes=None if here is None else here[1],
        modified_s=status.st_mtime,
    )


@attrs.frozen
class SourcePattern:
    """A source that selects models. ``revision``: None selects all."""

    text: str
    reference: DesiredModel | HubRepository
    revision: str | None

    @classmethod
    def parse(cls, text: str) -> SourcePattern:
        """Parse a source; UnknownSourceError if ``text`` names none."""
        reference = reference_of(text)
        if isinstance(reference, NoModel):
            raise UnknownSourceError(f"{text!r} is no model")
        revision = getattr(reference, "revision", None)
        is_named = not text.startswith("hf:") or "@" in text
        return cls(text, reference, revision if is_named else None)

    @classmethod
    def of(cls, model: DesiredModel) -> SourcePattern:
        """Return the pattern of exactly this model, at its revision."""
        return cls(text_of(model), model, getattr(model, "revision", DEFAULT_REVISION))

    def matches(self, model: CachedModel, settings: HubSettings) -> bool:
        """Return whether it selects ``model``."""
        if self.text == model.source:
            return True
        match self.reference:
            case HubRepository() | HuggingFaceModel():
                return model.origin is not None and self.selects_origin(model.origin)
            case UrlModel(url):
                return _is_at(model, settings, url)
            case LocalToAgent(path):
                return any(path in {str(p.path), str(p.path.resolve())} for p in model.places)
            case NoModel():
                return False

    def selects_origin(self, origin: HubOrigin) -> bool:
        """Return whether it selects the model of a hub whose first file this is."""
        if self.revision is not None and self.revision not in {origin.commit, *origin.revisions}:
            return False
        match self.reference:
            case HubRepository(repo_id, quantisation):
                return origin.repo_id == repo_id and (
                    quantisation is None or is_quantised(origin.filename, quantisation)
                )
            case HuggingFaceModel(filename, repo_id):
                return origin.repo_id == repo_id and origin.filename == part_names(filename)[0]
            case _:
                return False


def _is_at(model: CachedModel, settings: HubSettings, url: str) -> bool:
    try:
        path = UrlFile.of(settings.url_cache, url.partition("#")[0]).path
    except ValueError:
        return False
    return any(place.path == path for place in model.places)
