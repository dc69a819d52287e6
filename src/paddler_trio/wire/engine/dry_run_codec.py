"""The bytes of the frames between the dry run and the process that asks it: as on the engine's
pipe, a 4-byte big-endian length and a MessagePack map."""

from __future__ import annotations

import struct

import msgpack
from cattrs import BaseValidationError, Converter
from cattrs.strategies import configure_tagged_union

from paddler_trio.errors import WireError
from paddler_trio.wire.engine.dry_run_frames import DryRunAnswer, MeasureMemory

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
    """The whole frame, length prefix included."""
    return _framed(_CONVERTER.unstructure(question))


def encode_answer(answer: DryRunAnswer) -> bytes:
    """The whole frame, length prefix included."""
    return _framed(_CONVERTER.unstructure(answer, unstructure_as=DryRunAnswer))


def frame_length(prefix: bytes) -> int:
    """How many bytes follow this prefix; WireError if that cannot be a frame."""
    length: int = _LENGTH.unpack(prefix)[0]
    if length > MAX_FRAME_BYTES:
        raise WireError(f"a dry run frame of {length} bytes; the limit is {MAX_FRAME_BYTES}")
    return length


def decode_question(body: bytes) -> MeasureMemory:
    """WireError if this is not what is asked of a dry run."""
    return _structured(body, MeasureMemory)  # type: ignore[return-value]


def decode_answer(body: bytes) -> DryRunAnswer:
    """WireError if this is not what a dry run answers."""
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
