"""Pushed models on an agent: one folder a manifest, so that all parts of a model lie together.

    pushed/<sha256 of the manifest>/<name>
    pushed/<sha256 of the manifest>/.paddler-trio/manifest.json    its canonical text

A file is a hit if the manifest has it and its size fits. Everything blocks; OSErrors pass through.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from paddler_trio.errors import WireError
from paddler_trio.models.cache.content_hash import ContentHash
from paddler_trio.models.hub.hub_cache import OURS, quarantined, size_of
from paddler_trio.models.pushed.pushed_model import Manifest, PushedFile, read_manifest
from paddler_trio.system.durable import durably_replace, write_durably


@attrs.frozen
class PushedFolder:
    """The place of one pushed model.

    Args:
      root: of all of them.
      sha256: of the manifest; it names the folder.
    """

    root: Path
    sha256: str

    @property
    def path(self) -> Path:
        return self.root / self.sha256

    @property
    def ours(self) -> Path:
        return self.path / OURS

    @property
    def _manifest_path(self) -> Path:
        return self.ours / "manifest.json"

    def lock(self, name: str) -> Path:
        return self.ours / f"{name}.lock"

    def manifest(self) -> Manifest | None:
        """Return the manifest, if it is here and is the one that the folder is named by."""
        try:
            manifest = read_manifest(self._manifest_path.read_bytes())
        except (OSError, WireError):
            return None
        return manifest if manifest.sha256 == self.sha256 else None

    def keep_manifest(self, manifest: Manifest) -> None:
        """Write it down, unless it is."""
        if self.manifest() is None:
            write_durably(self._manifest_path, manifest.text)

    def cached(self, file: PushedFile) -> Path | None:
        """Return the file if it is here in its size."""
        path = self.path / file.name
        return path if not path.is_symlink() and size_of(path) == file.size else None

    def expected(self, name: str) -> ContentHash | None:
        """Return what the file must hash to; None if the manifest does not have it."""
        manifest = self.manifest()
        files = () if manifest is None else manifest.all_files
        found = [file for file in files if file.name == name]
        return ContentHash("sha256", found[0].sha256) if found else None

    def publish(self, partial: Path, name: str) -> Path:
        """Make a finished and verified download the file."""
        path = self.path / name
        if path.is_symlink() or (path.exists() and not path.is_file()):
            self.quarantine(name)
        durably_replace(partial, path)
        return path

    def quarantine(self, name: str) -> Path:
        """Move a file out of the way."""
        return quarantined(self.path / name, self.ours)


def pushed_folders(root: Path) -> list[PushedFolder]:
    """Return all folders that are there."""
    return [PushedFolder(root, ours.parent.name) for ours in sorted(root.glob(f"*/{OURS}"))]


def pushed_journals(root: Path) -> list[Path]:
    """Return the journals of every download of a pushed file under way, or left."""
    return list(root.glob(f"*/{OURS}/*.journal"))
