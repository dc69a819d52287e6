"""Find the files of a store that the desired models are: these must stay. Blocking.

Anybody who may manage names models, and what they name need not exist. An error here would end the
store, again and again, so a name that leads nowhere is no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import urldefrag, urlsplit, urlunsplit

from paddler_trio.errors import WireError
from paddler_trio.models.cache.url_cache import UrlFile
from paddler_trio.models.hub.hub_cache import HubCache, name_problem
from paddler_trio.models.hub.hub_choice import part_names
from paddler_trio.models.pushed.pushed_model import read_manifest
from paddler_trio.processes.model_store.store_layout import StoreLayout, is_sha256
from paddler_trio.wire.paddler.desired_state import DesiredModel, HuggingFaceModel, UrlModel

PUSHED_SCHEME = "store"


def desired_files(layout: StoreLayout, models: Iterable[DesiredModel]) -> frozenset[str]:
    """Return the keys of all files of these models, as far as they are known here."""
    keys: set[str] = set()
    for model in models:
        match model:
            case HuggingFaceModel():
                keys.update(_of_hub(layout, model))
            case UrlModel(url) if url.startswith(f"{PUSHED_SCHEME}:"):
                keys.update(_of_pushed(layout, url))
            case UrlModel(url):
                keys.update(_of_url(layout, url))
    return frozenset(keys)


def _of_hub(layout: StoreLayout, model: HuggingFaceModel) -> Iterator[str]:
    if name_problem(model.repo_id, model.filename, model.revision) is not None:
        return
    repository = HubCache(layout.hub).repository(model.repo_id)
    commit = repository.commit_of(model.revision)
    if commit is None:
        return
    for name in part_names(model.filename):
        try:
            blob = repository.pointer(commit, name).readlink().name
        except OSError:  # no link is there, or its path is longer than any can be
            continue
        yield layout.key(repository.blob(blob))


def _of_url(layout: StoreLayout, url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    if not parts.hostname:
        return
    before, slash, last = parts.path.rpartition("/")
    for name in (last,) if parts.query else part_names(last):
        address = urlunsplit(parts._replace(path=f"{before}{slash}{name}"))
        yield layout.key(UrlFile.of(layout.urls, urldefrag(address)[0]).path)


def _of_pushed(layout: StoreLayout, url: str) -> Iterator[str]:
    """Yield the manifest and files of ``store://sha256/<hex of the manifest>/<first file's name>``:
    the manifest and its files."""
    sha256 = url.partition("://sha256/")[2].partition("/")[0]
    if not is_sha256(sha256):
        return
    path = layout.manifest(sha256)
    yield layout.key(path)
    try:
        manifest = read_manifest(path.read_bytes())
    except (OSError, WireError):
        return
    for file in manifest.all_files:
        yield layout.key(layout.pushed_blob(file.sha256))
