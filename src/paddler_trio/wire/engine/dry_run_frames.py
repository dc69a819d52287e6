"""The frames that ask a dry run what memory a model takes, and its answers.

A dry run is a process of its own (``dry_run.py``): llama.cpp reads the header of a model's
file and counts what it would allocate. ``dry_run_codec`` turns frames into bytes.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.memory_need import MemoryNeed


@attrs.frozen
class MeasureMemory:
    """Answered by one of the three frames below.

    Args:
      load: what would be loaded; its paths are those of the files, or of sparse copies of them.
      parts: all files of the model if it has several, the first one first.
      present: of files that are not whole, by path: so many bytes from the beginning are here.
    """

    load: LoadModel
    parts: list[str] = attrs.field(factory=list)
    present: dict[str, int] = attrs.field(factory=dict)


@attrs.frozen
class HeaderIncomplete:
    """The header of ``path`` goes on: at least ``needed_bytes`` from the beginning are needed."""

    path: str
    needed_bytes: int


@attrs.frozen
class MemoryMeasured:
    """The answer."""

    need: MemoryNeed


@attrs.frozen
class MemoryUnknown:
    """There is no answer; ``kind`` and ``reason`` as in ``errors.MemoryUnknownError``."""

    kind: str
    reason: str


DryRunAnswer: TypeAlias = HeaderIncomplete | MemoryMeasured | MemoryUnknown
