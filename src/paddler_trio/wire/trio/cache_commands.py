"""Commands of operators about the models that one of our agents keeps: fetch, list, hash, remove.

A command is answered by one :class:`~paddler_trio.wire.trio.trio_link.Answer`. Before it come
:class:`CacheProgress` messages, one at once and then about four a second at most. Paddler's
``StopRespondingTo`` with its id ends it early, and so does the end of the link: what is here of a
file stays.

Sources are texts in the forms of the command line, ``hf:org/repo`` say. They select among what is
there, so a repository selects all of its files, and a file without a revision all its revisions.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import attrs

from paddler_trio.wire.paddler.desired_state import DesiredModel, HuggingFaceModel, UrlModel
from paddler_trio.wire.scalars import IntRange, Uint32, Uint64
from paddler_trio.wire.shape import OMITTED, ShapeError
from paddler_trio.wire.tags import external_tag, structs

MAX_MODELS: Final = 8
"""The models of one command; each may have hundreds of parts."""
MAX_SOURCES: Final = 64
MAX_SOURCE_CHARS: Final = 16 * 1024

Seconds: TypeAlias = Annotated[int, IntRange(0, 2**40)]


def _check_sources(sources: tuple[str, ...], name: str) -> None:
    if len(sources) > MAX_SOURCES:
        raise ShapeError(f"{len(sources)} sources, the limit is {MAX_SOURCES}", name)
    for place, source in enumerate(sources):
        if not 0 < len(source) <= MAX_SOURCE_CHARS or "\0" in source:
            raise ShapeError(
                f"a source of {len(source)} characters, must have 1 to {MAX_SOURCE_CHARS} and no "
                "NUL",
                place,
                name,
            )


@attrs.frozen(kw_only=True)
class Pull:
    """Fetch the files of these models and serve nothing.

    Answered by ``{"files": [{"source", "path", "size_bytes", "commit"}]}``, one for each model;
    ``path`` is the first part, ``size_bytes`` of all parts.

    Raises:
      ShapeError: no model, too many, or one that is not fetched from anywhere.
    """

    models: tuple[DesiredModel, ...]

    def __attrs_post_init__(self) -> None:
        if not 0 < len(self.models) <= MAX_MODELS:
            raise ShapeError(f"{len(self.models)} models, must be 1 to {MAX_MODELS}", "models")
        for place, model in enumerate(self.models):
            if not isinstance(model, UrlModel | HuggingFaceModel):
                kind = type(model).__name__
                raise ShapeError(f"{kind} is not fetched from anywhere", place, "models")


@attrs.frozen(kw_only=True)
class ListCache:
    """Answered by ``{"caches": [...], "models": [...], "left_out": N}``.

    ``caches`` are ids, the same for agents that share them; ``left_out`` counts the models over the
    limit. A model has ``source``, ``cache``, ``state``, ``path``, ``size_bytes``, ``files`` and
    ``missing_files``, ``revisions``, ``last_used_s`` and ``verified_s`` in Unix time or null, and
    ``in_use``, ``is_desired``. The state is ``whole``, ``incomplete`` (parts are missing),
    ``arriving`` (a download), ``partial`` (one that nobody goes on with now), ``quarantined`` or
    ``local`` (served from a path outside the caches).
    """


@attrs.frozen(kw_only=True)
class Verify:
    """Hash files again, all or those of ``sources``; what does not match is quarantined.

    Answered by ``{"files": [{"source", "path", "size_bytes", "result", "problem"}]}``. A result is
    ``matches``, ``quarantined``, ``unknown`` (nobody announced a hash) or ``failed``.
    """

    sources: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        _check_sources(self.sources, "sources")


@attrs.frozen(kw_only=True)
class Prune:
    """Remove models from the cache, but none that is desired, in use or being fetched, none that no
    agent has ever used, and none that one of these keeps: its source, being one of the ``newest``
    by last use, its last use within ``used_within_s``.

    Answered by ``{"removed": [...], "kept": N, "freed_bytes": N}``, where ``removed`` has
    ``{"source", "path", "size_bytes", "problem"}``; in a ``dry_run`` it is what would be removed.

    Raises:
      ShapeError: nothing says what to keep, or a source is beyond a limit.
    """

    sources: tuple[str, ...] = ()
    newest: Uint32 | None = attrs.field(default=None, metadata=OMITTED)
    used_within_s: Seconds | None = attrs.field(default=None, metadata=OMITTED)
    dry_run: bool = False

    def __attrs_post_init__(self) -> None:
        _check_sources(self.sources, "sources")
        if not self.sources and self.newest is None and self.used_within_s is None:
            raise ShapeError("one of sources, newest and used_within_s says what to keep")


CacheRequest: TypeAlias = Pull | ListCache | Verify | Prune
external_tag(CacheRequest, *structs(CacheRequest))


@attrs.frozen(kw_only=True)
class CacheProgress:
    """The progress of a command with one file. ``total_bytes`` and what follows from it are None
    while nobody knows. ``phase``: see ``Download``; or ``hashing``, or why the next attempt
    waits."""

    id: str
    phase: str
    source: str
    filename: str
    file_index: Uint32 = 1
    file_count: Uint32 = 1
    current_bytes: Uint64 = 0
    total_bytes: Uint64 | None = None
    bytes_per_s: Uint64 | None = None
    remaining_s: Uint32 | None = None
