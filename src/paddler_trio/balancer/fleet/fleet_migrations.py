"""Versions of the fleet's file: what older ones hold, as this version writes it.

A version is a whole number, written as a text. A migration takes the JSON of one version and makes
that of the next; those of all versions are chained. A file of a newer version is refused: it may
hold what this one would lose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import structlog

from paddler_trio.balancer.fleet.state_database import MAX_FILE_BYTES, content, digest_of
from paddler_trio.errors import StateDatabaseError, WireError
from paddler_trio.wire.codec import loads, structure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState
from paddler_trio.wire.shape import OMITTED, ShapeError
from paddler_trio.wire.trio.desired_state_extras import Extras

Document: TypeAlias = Mapping[str, object]
Migration: TypeAlias = Callable[[Document], Document]

log = structlog.get_logger("state")

MAX_SHOWN_CHARS: Final = 80


class NewerVersionError(StateDatabaseError):
    """The file was written by a newer version of this program."""


@attrs.frozen
class Migrated:
    """``found`` is the version of the file as it is."""

    document: Document
    found: int


def with_writer(document: Document) -> Document:
    """Version 2 names the program that wrote it, for those who have to go back to it."""
    return {**document, "written_by": ""}


def with_proofs_and_loads(document: Document) -> Document:
    """Version 3 keeps whether the canaries of a rollout had passed, and measured load times."""
    rollouts = document.get("rollouts")
    if not isinstance(rollouts, list):
        return {**document, "loads": []}
    return {**document, "rollouts": [_with_proof(each) for each in rollouts], "loads": []}


def _with_proof(entry: object) -> object:
    """Add whether the canaries of a rollout had passed. What is no rollout is left as it is, and
    refused when it is read."""
    rollout = entry.get("rollout") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(rollout, dict):
        return entry
    is_proven = rollout.get("phase") in ("rolling", "complete")
    return {**entry, "rollout": {**rollout, "is_proven": is_proven, "others": []}}


def with_named(document: Document) -> Document:
    """Version 4 keeps what rollouts name and no revision has any more; older ones had lost it."""
    return {**document, "named": []}


def with_failed(document: Document) -> Document:
    """Version 5 keeps of each revision which of its deployments failed; older ones forgot it. And
    what a rollout went back to has an author that no key can be named as."""
    history = document.get("history")
    if not isinstance(history, list):
        return document
    return {**document, "history": [_with_author(each) for each in history]}


def _with_author(entry: object) -> object:
    """Add the author. What is no revision is left as it is. A key may have had the name, but not
    with this note."""
    if not isinstance(entry, dict):
        return entry
    author, note = entry.get("author"), entry.get("note")
    if author == "rollout" and isinstance(note, str) and " rolled back: " in note:
        author = "a rollout"
    return {**entry, "author": author, "failed": []}


MIGRATIONS: Final[tuple[Migration, ...]] = (
    with_writer,
    with_proofs_and_loads,
    with_named,
    with_failed,
)
"""The first one makes version 2 of version 1."""
VERSION: Final = 1 + len(MIGRATIONS)


def migrated(document: object, migrations: Sequence[Migration] = MIGRATIONS) -> Migrated:
    """Return the document in the newest version.

    Errors:
      NewerVersionError: it is of a version after that.
      WireError: it has no version.
    """
    newest = 1 + len(migrations)
    if not isinstance(document, dict):
        raise ShapeError("expected an object")
    found = _version_of(document)
    if found > newest:
        writer = document.get("written_by")
        by = f" by {writer[:MAX_SHOWN_CHARS]}" if isinstance(writer, str) and writer else ""
        raise NewerVersionError(
            f"it has version {found} and was written{by}; this program reads versions up to "
            f"{newest}"
        )
    result: Document = document
    for version, migration in enumerate(migrations[found - 1 :], start=found + 1):
        result = {**migration(result), "version": str(version)}
    return Migrated(result, found)


def _version_of(document: Document) -> int:
    text = document.get("version")
    if "version" not in document:
        raise ShapeError("required field missing", "version")
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 9):
        raise ShapeError("expected a whole number as a text", "version")
    if int(text) < 1:
        raise ShapeError(f"{text!r} is no version", "version")
    return int(text)


# ------------------------------------------------------------ before there was a fleet


class _Version(StrEnum):
    V2 = "2"


@attrs.frozen
class _Document:
    """``replaced``: the extras of any other state than the one with the digest ``state``."""

    extras: Extras
    version: _Version = _Version.V2
    state: str | None = attrs.field(default=None, metadata=OMITTED)
    replaced: Extras | None = attrs.field(default=None, metadata=OMITTED)


@attrs.frozen
class OldExtrasFile:
    """``PATH.v2.json``: where the extras were kept before there was a fleet. Blocking.

    It is read once: what it holds becomes that of the deployment ``default``, and the file is
    renamed to ``PATH.v2.json.migrated``. A balancer of an older version writes it anew.
    """

    state: Path

    @property
    def path(self) -> Path:
        return self.state.with_name(f"{self.state.name}.v2.json")

    def read(self, desired: BalancerDesiredState) -> Extras | None:
        """Read the extras that belong to Paddler's state; None if there is no file.
        StateDatabaseError: it is none, and was left as it is."""
        text = content(self.path, limit_bytes=MAX_FILE_BYTES)
        if not text.strip():
            return None
        try:
            document = structure(loads(text), _Document)
        except WireError as error:
            raise StateDatabaseError(
                f"{self.path} holds no valid extras: {error}; it was left as it is. "
                "Repair it, or move it away to go on without what it holds"
            ) from error
        if document.replaced is not None and document.state != digest_of(desired):
            return document.replaced
        return document.extras

    def put_away(self) -> None:
        """Rename it: what it held is kept elsewhere now."""
        try:
            self.path.replace(f"{self.path}.migrated")
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("a file of extras is read again", path=str(self.path), reason=str(error))
