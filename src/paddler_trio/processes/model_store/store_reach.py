"""Tell what a path of the store names, and whether it is a file of given models.

An agent's credential opens files of the models that its deployments name, or that an operator told
agents to fetch, and nothing else: not the list, and no address of the agent's choice.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from urllib.parse import unquote, urldefrag, urlsplit, urlunsplit

from paddler_trio.models.hub.hub_cache import is_commit
from paddler_trio.models.hub.hub_choice import part_names
from paddler_trio.models.pushed.pushed_model import pushed_source
from paddler_trio.processes.model_store.store_layout import (
    PUSHED_SCHEME,
    StoreLayout,
    desired_files,
    is_sha256,
)
from paddler_trio.wire.paddler.desired_state import DesiredModel, HuggingFaceModel, UrlModel


def segments_of(raw_path: str) -> list[str]:
    """Return the parts of a path, each percent-decoded: ``["", "api", "v2", "store", "hf", …]``."""
    return [unquote(segment) for segment in raw_path.split("/")]


def hub_model_of(raw_path: str) -> HuggingFaceModel | None:
    """Return the file that a route of the hub names; None for what is no such route."""
    rest = segments_of(raw_path)[5:]
    at = 2 if rest[2:3] == ["resolve"] else 1
    if rest[at : at + 1] != ["resolve"] or len(rest) < at + 3:
        return None
    return HuggingFaceModel(
        filename="/".join(rest[at + 2 :]), repo_id="/".join(rest[:at]), revision=rest[at + 1]
    )


def url_of(name: str) -> str:
    """Return the URL that base64url names; ValueError."""
    try:
        padded = name + "=" * (-len(name) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"no URL in base64url: {error}") from error


def url_parts(url: str) -> Iterator[str]:
    """Yield the addresses of all files of the model at ``url``, without fragments; none for what is
    no URL."""
    try:
        parts = urlsplit(urldefrag(url)[0])
    except ValueError:
        return
    before, slash, last = parts.path.rpartition("/")
    for name in (last,) if parts.query else part_names(last):
        yield urlunsplit(parts._replace(path=f"{before}{slash}{name}"))


def is_file_of(layout: StoreLayout, models: Iterable[DesiredModel], raw_path: str) -> bool:
    """Return whether the path names a file of these models. Blocking: manifests are read."""
    match segments_of(raw_path)[4:]:
        case ["hf", *_]:
            asked = hub_model_of(raw_path)
            return asked is not None and any(
                isinstance(model, HuggingFaceModel) and _is_part(asked, model) for model in models
            )
        case ["url", name]:
            try:
                address = urldefrag(url_of(name))[0]
            except ValueError:
                return False
            urls = (model.url for model in models if isinstance(model, UrlModel))
            return any(address in url_parts(url) for url in urls)
        case ["manifests" | "blobs" as kind, "sha256", sha256] if is_sha256(sha256):
            pushed = [
                model
                for model in models
                if isinstance(model, UrlModel) and model.url.startswith(f"{PUSHED_SCHEME}:")
            ]
            if kind == "manifests":
                sources = (pushed_source(model.url) for model in pushed)
                return any(each and each.manifest_sha256 == sha256 for each in sources)
            return layout.key(layout.pushed_blob(sha256)) in desired_files(layout, pushed)
    return False


def _is_part(asked: HuggingFaceModel, model: HuggingFaceModel) -> bool:
    """Return whether it is a file of ``model``, at its revision or at a commit: agents ask which
    one a branch is, and then for that."""
    return (
        asked.repo_id == model.repo_id
        and asked.filename in part_names(model.filename)
        and (
            asked.revision == model.revision
            or (is_commit(asked.revision) and not is_commit(model.revision))
        )
    )
