"""Models that were pushed to a balancer's store: named by their content.

A *manifest* lists the files of one model. The SHA-256 of its canonical JSON names the model, so
equal files under equal names are one model, whoever pushed them:

    store://sha256/<hex of the manifest>/<name of the first file, or of the projection>

Pure.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Final

import attrs

from paddler_trio.errors import WireError
from paddler_trio.models.hub.hub_choice import MAX_PARTS
from paddler_trio.models.pushed.pushed_source import SCHEME, pushed_name_problem
from paddler_trio.wire.codec import canonical, loads, structure, unstructure
from paddler_trio.wire.scalars import IntRange
from paddler_trio.wire.shape import ShapeError

MAX_MANIFEST_BYTES: Final = 1024 * 1024
MAX_PUSHED_BYTES: Final = 1 << 50
"""The bytes of one file."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@attrs.frozen
class PushedFile:
    """One file of a model.

    Args:
      name: without folders.
      sha256: lower-case hex.

    Raises:
      ShapeError: the name or the hash cannot be.
    """

    name: str
    size: Annotated[int, IntRange(1, MAX_PUSHED_BYTES)]
    sha256: str

    def __attrs_post_init__(self) -> None:
        problem = pushed_name_problem(self.name)
        if problem is not None:
            raise ShapeError(problem, "name")
        if _SHA256.fullmatch(self.sha256) is None:
            raise ShapeError(
                f"{self.sha256[:80]!r} is no SHA-256: 64 hex digits in lower case", "sha256"
            )


@attrs.frozen
class Manifest:
    """The files of one pushed model.

    Args:
      files: the parts in order; names differ.
      projection: what lets the model see images; None if it has none.

    Raises:
      ShapeError: no file, too many, or two with one name.
    """

    files: tuple[PushedFile, ...]
    projection: PushedFile | None

    def __attrs_post_init__(self) -> None:
        if not 0 < len(self.files) <= MAX_PARTS:
            raise ShapeError(f"{len(self.files)} files, must be 1 to {MAX_PARTS}", "files")
        names = [file.name for file in self.all_files]
        if len(set(names)) < len(names):
            raise ShapeError("two files have one name", "files")

    @property
    def all_files(self) -> tuple[PushedFile, ...]:
        """All files, the projection included."""
        return self.files if self.projection is None else (*self.files, self.projection)

    @property
    def text(self) -> bytes:
        """The canonical JSON."""
        return canonical(unstructure(self))

    @property
    def sha256(self) -> str:
        """The SHA-256 that names the model."""
        return hashlib.sha256(self.text).hexdigest()

    def source(self, file: PushedFile) -> str:
        """Return how the desired state names the model by its first file, or its projection."""
        return f"{SCHEME}sha256/{self.sha256}/{file.name}"

    def wanted(self, name: str) -> tuple[PushedFile, ...]:
        """Return the files that belong to ``name``: all parts, or the projection; none if there is
        no such name."""
        if self.projection is not None and self.projection.name == name:
            return (self.projection,)
        return self.files if name in {file.name for file in self.files} else ()


def read_manifest(text: bytes) -> Manifest:
    """Return a manifest in its canonical form.

    Errors:
      WireError: it is too long, no manifest, or not canonical: another text of the same would have
        another name.
    """
    if len(text) > MAX_MANIFEST_BYTES:
        raise WireError(f"a manifest of {len(text)} bytes; the limit is {MAX_MANIFEST_BYTES}")
    manifest = structure(loads(text), Manifest)
    if manifest.text != text:
        raise WireError("the manifest is not in canonical form: sorted keys, no blanks")
    return manifest
