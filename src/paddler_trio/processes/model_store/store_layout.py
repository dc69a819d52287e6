"""Know where everything lies in the folder of a model store.

    DIR/
      store.lock                  held by the store that runs
      pins.json                   what an operator pinned: a list of keys
      hub/                        a Hugging Face cache, as on every agent: see ``hub_cache``
      urls/                       files of plain URLs, as on every agent: see ``url_cache``
      pushed/
        blobs/<sha256>            a file that was pushed, whole and verified
        manifests/<sha256>        the canonical JSON of a manifest: its own bytes hash to its name
        uploads/                  what has arrived of uploads: <sha256>.partial

A *key* names one file in logs, pins and the list of ``GET /api/v2/store``: its path below DIR, with
slashes. Blobs appear by a rename after their hash was compared, so what has a blob's name is whole.
The time of last access (atime), which the store sets itself, is when a file was used last.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.models.hub.hub_cache import OURS
from paddler_trio.net.server.asgi import HttpProblem

_SHA256 = re.compile(r"[0-9a-f]{64}")
LOCK_NAME: Final = "store.lock"


def is_sha256(text: str) -> bool:
    """Return whether it is a SHA-256 in lower-case hex."""
    return _SHA256.fullmatch(text) is not None


def checked_sha256(text: str) -> str:
    """Return the parameter of a path; HttpProblem 400 if it is no SHA-256."""
    if not is_sha256(text):
        raise HttpProblem(400, f"{text[:80]!r} is no SHA-256: 64 hex digits in lower case")
    return text


@attrs.frozen
class StoreLayout:
    """See the module docstring. ``root`` is absolute."""

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / LOCK_NAME

    @property
    def pins(self) -> Path:
        return self.root / "pins.json"

    @property
    def hub(self) -> Path:
        return self.root / "hub"

    @property
    def urls(self) -> Path:
        return self.root / "urls"

    @property
    def pushed(self) -> Path:
        return self.root / "pushed"

    @property
    def uploads(self) -> Path:
        return self.pushed / "uploads"

    def pushed_blob(self, sha256: str) -> Path:
        """Return the path of a blob; ``sha256`` has passed :func:`is_sha256`."""
        return self.pushed / "blobs" / sha256

    def manifest(self, sha256: str) -> Path:
        """Return the path of a manifest; ``sha256`` has passed :func:`is_sha256`."""
        return self.pushed / "manifests" / sha256

    def key(self, path: Path) -> str:
        """Return what names the file at ``path``, which lies below the root."""
        return path.relative_to(self.root).as_posix()

    def partial_of(self, key: str) -> Path:
        """Return where a download or an upload of the file of ``key`` writes."""
        path = self.root / key
        if path.is_relative_to(self.pushed):
            return self.uploads / f"{path.name}.partial"
        folder = path.parent.parent if path.is_relative_to(self.hub) else path.parent
        return folder / OURS / f"{path.name}.partial"

    def quarantined_key(self, key: str) -> str:
        """Return what names the bytes that came for ``key`` and were wrong."""
        return self.key(self.partial_of(key).with_suffix(".quarantined"))

    def folders(self) -> tuple[Path, ...]:
        """Return all that must be there before the store works."""
        return (
            self.hub,
            self.urls,
            self.pushed / "blobs",
            self.pushed / "manifests",
            self.uploads,
        )
