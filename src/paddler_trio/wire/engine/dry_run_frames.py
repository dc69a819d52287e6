"""The frames that ask a dry run what memory a model takes, and its answers.

A dry run is a process of its own (``dry_run.py``): llama.cpp reads the header of a model's
file and counts what it would allocate.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import attrs
import msgpack
from cattrs import BaseValidationError, Converter
from cattrs.strategies import configure_tagged_union

from paddler_trio.errors import WireError
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


MAX_FRAME_BYTES = 4 << 20
"""Paths, numbers and names of devices; nothing grows with the model."""


_LENGTH = struct.Struct(">I")


LENGTH_BYTES = _LENGTH.size


def _converter() -> Converter:
    converter = Converter(forbid_extra_keys=True)
    configure_tagged_union(DryRunAnswer, converter, tag_name="type")
    return converter


_CONVERTER = _converter()


def encode_question(question: MeasureMemory) -> bytes:
    """Return the whole frame, length prefix included."""
    return _framed(_CONVERTER.unstructure(question))


def encode_answer(answer: DryRunAnswer) -> bytes:
    """Return the whole frame, length prefix included."""
    return _framed(_CONVERTER.unstructure(answer, unstructure_as=DryRunAnswer))


def frame_length(prefix: bytes) -> int:
    """Return how many bytes follow this prefix; WireError if that cannot be a frame."""
    length: int = _LENGTH.unpack(prefix)[0]
    if length > MAX_FRAME_BYTES:
        raise WireError(f"a dry run frame of {length} bytes; the limit is {MAX_FRAME_BYTES}")
    return length


def decode_question(body: bytes) -> MeasureMemory:
    """Return the question; WireError if it is not what is asked of a dry run."""
    return _structured(body, MeasureMemory)  # type: ignore[return-value]


def decode_answer(body: bytes) -> DryRunAnswer:
    """Return the answer; WireError if it is not what a dry run answers."""
    return _structured(body, DryRunAnswer)  # type: ignore[return-value]


def _framed(value: object) -> bytes:
    body: bytes = msgpack.packb(value)
    return _LENGTH.pack(len(body)) + body


def _structured(body: bytes, kind: object) -> object:
    try:
        value = msgpack.unpackb(body)
        if not isinstance(value, dict):
            raise TypeError(f"a {type(value).__name__} instead of a map")
        return _CONVERTER.structure(value, kind)  # type: ignore[arg-type]
    except (
        BaseValidationError,
        KeyError,
        TypeError,
        ValueError,
        msgpack.UnpackException,
    ) as error:
        raise WireError(f"a dry run frame of {len(body)} bytes does not decode") from error
