"""Files of plain URLs: a layout in which people find what they look for.

    urls/<host>/<16 hex of the address>/<file name>
    urls/<host>/<16 hex of the address>/.paddler-trio/<file name>.json    what is known of it

The parts of one model lie in one folder, where llama.cpp looks for them: the hash is of the address
without the file's name. A file is a hit if its record is there and fits; the server is not asked
again. Everything blocks; OSErrors pass through.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import attrs

from paddler_trio.models.cache.content_hash import ContentHash
from paddler_trio.models.hub.hub_cache import OURS, quarantined
from paddler_trio.system.durable import durably_replace, write_durably

MAX_NAME_BYTES: Final = 200
_UNSAFE = re.compile(r"[^A-Za-z0-9._+=@~ ()-]")


@attrs.frozen
class UrlRecord:
    """The facts known of a cached file.

    Args:
      hash: of the content, as it arrived.
      etag: of the server; empty if it had none.
      url: of the file, without what may be secret; empty if it was fetched before this was kept.
    """

    size_bytes: int
    hash: ContentHash
    etag: str
    url: str = ""


@attrs.frozen
class UrlFile:
    """The place of one URL's file."""

    folder: Path
    name: str

    @classmethod
    def of(cls, root: Path, url: str) -> UrlFile:
        """Return the place of ``url``, which has a host."""
        parts = urlsplit(url)
        before, _, last = parts.path.rpartition("/")
        address = f"{parts.scheme}://{parts.netloc}{before}?{parts.query}"
        digest = hashlib.sha256(address.encode(errors="surrogatepass")).hexdigest()[:16]
        host = _safe(parts.hostname or "")
        return cls(root / host / digest, _safe(unquote(last)))

    @property
    def path(self) -> Path:
        return self.folder / self.name

    @property
    def ours(self) -> Path:
        return self.folder / OURS

    @property
    def lock(self) -> Path:
        return self.ours / f"{self.name}.lock"

    @property
    def _record_path(self) -> Path:
        return self.ours / f"{self.name}.json"

    def cached(self) -> UrlRecord | None:
        """Return the record of the file if it is here, whole and no link; else None."""
        try:
            fields = json.loads(self._record_path.read_bytes())
            record = UrlRecord(
                fields["size_bytes"],
                ContentHash("sha256", fields["sha256"]),
                fields["etag"],
                str(fields.get("url", "")),
            )
            is_here = (
                self.path.is_file()
                and not self.path.is_symlink()
                and self.path.stat().st_size == record.size_bytes
            )
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return record if is_here else None

    def publish(self, partial: Path, record: UrlRecord) -> Path:
        """Make a finished download the file; whatever was there is quarantined."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_file()):
            self.quarantine()
        self._record_path.unlink(missing_ok=True)
        durably_replace(partial, self.path)
        fields = {
            "size_bytes": record.size_bytes,
            "sha256": record.hash.hex,
            "etag": record.etag,
            "url": record.url,
        }
        write_durably(self._record_path, json.dumps(fields).encode())
        return self.path

    def quarantine(self) -> None:
        """Move the file out of the way."""
        quarantined(self.path, self.ours)


def url_journals(root: Path) -> list[Path]:
    """Return the journals of every download of a URL under way, or left."""
    return list(root.glob(f"*/*/{OURS}/*.journal"))


def url_text_for_logs(url: str) -> str:
    """Return the address without what may be secret: user, password, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _safe(name: str) -> str:
    """Return ``name`` as a file's name on any file system; never hidden, empty or too long."""
    cleaned = _UNSAFE.sub("_", name).lstrip(". ").rstrip(" ")
    return cleaned[-MAX_NAME_BYTES:].lstrip(". ") or "file"
