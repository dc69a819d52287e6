"""The bytes of the frames between an agent and its engine process.

A frame is a 4-byte big-endian length and a MessagePack map tagged by ``type``. Both ends come from
one installation, so the format has no version: the first frame names the agent's package version,
and the engine compares.
"""

from __future__ import annotations

import struct
from array import array

import attrs
import msgpack
from cattrs import BaseValidationError, Converter, StructureHandlerNotFoundError
from cattrs.strategies import configure_tagged_union

from paddler_trio.errors import WireError
from paddler_trio.wire.engine.engine_pipe import (
    Ending,
    FromEngine,
    Logprobs,
    Progress,
    SampledToken,
    Step,
    ToEngine,
)

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""A prompt of ten million tokens is about 50 MB; anything near this limit is a broken pipe."""

_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size


def _converter() -> Converter:
    converter = Converter(forbid_extra_keys=True)
    converter.register_unstructure_hook_func(lambda kind: kind == list[int], _packed)
    converter.register_structure_hook_func(lambda kind: kind == list[int], _tokens_of)
    configure_tagged_union(ToEngine, converter, tag_name="type")
    configure_tagged_union(FromEngine, converter, tag_name="type")
    return converter


def _packed(tokens: list[int]) -> bytes:
    """Return token ids as int32 of this machine: a prompt has thousands, and others wait
    meanwhile."""
    return array("i", tokens).tobytes()


def _tokens_of(value: object, _: object) -> list[int]:
    if type(value) is not bytes:
        raise TypeError("not token ids")
    return array("i", value).tolist()


_CONVERTER = _converter()


def _step_as_map(step: Step) -> dict[str, object]:
    """Return a step as a map, on the hot path of the pipe: one of these for every pass, a row for
    every token."""
    rows = [
        (sampled.key, sampled.token, sampled.text, *_logprobs_as_row(sampled.logprobs))
        for sampled in step.sampled
    ]
    endings = [attrs.asdict(ending) for ending in step.endings]
    progress = [attrs.astuple(entry) for entry in step.progress]
    return {
        "type": "Step",
        "sampled": rows,
        "endings": endings,
        "progress": progress,
        "preempted": step.preempted,
    }


def _step_of(value: dict[str, object]) -> Step:
    rows, endings, progress = value["sampled"], value["endings"], value["progress"]
    preempted = value["preempted"]
    if len(value) != 5 or type(rows) is not list or type(progress) is not list:
        raise TypeError("not a step")
    if type(preempted) is not list or (
        preempted and not all(type(key) is int for key in preempted)
    ):
        raise TypeError("not keys of sequences")
    ended = _CONVERTER.structure(endings, _ENDINGS) if endings else []
    return Step(
        [_sampled_of(*row) for row in rows],
        ended,
        [_progress_of(*row) for row in progress],
        preempted,
    )


def _progress_of(*numbers: object) -> Progress:
    match numbers:
        case (int(key), int(total), int(cached), int(computed), int(since_ms)):
            return Progress(key, total, cached, computed, since_ms)
    raise TypeError("not the progress of a prompt")


def _logprobs_as_row(logprobs: Logprobs | None) -> tuple[bytes, list[bytes], bytes] | tuple[()]:
    if logprobs is None:
        return ()
    return _packed(logprobs.tokens), logprobs.texts, array("d", logprobs.values).tobytes()


def _sampled_of(key: object, token: object, text: object, *logprobs: object) -> SampledToken:
    if type(key) is not int or type(token) is not int or type(text) is not bytes:
        raise TypeError("not a sampled token")
    if not logprobs:
        return SampledToken(key, token, text)
    return SampledToken(key, token, text, _logprobs_of(*logprobs))


def _logprobs_of(tokens: object, texts: object, values: object) -> Logprobs:
    if type(texts) is not list or type(values) is not bytes:
        raise TypeError("not tokens with their probabilities")
    found = Logprobs(_tokens_of(tokens, None), texts, array("d", values).tolist())
    if not len(found.tokens) == len(texts) == len(found.values) or set(map(type, texts)) != {bytes}:
        raise TypeError("not tokens with their probabilities")
    return found


_ENDINGS = list[Ending]


def encode(frame: ToEngine | FromEngine) -> bytes:
    """Return the whole frame, length prefix included."""
    if type(frame) is Step:
        body: bytes = msgpack.packb(_step_as_map(frame))
        return _LENGTH.pack(len(body)) + body
    family = ToEngine if isinstance(frame, ToEngine) else FromEngine
    body = msgpack.packb(_CONVERTER.unstructure(frame, unstructure_as=family))
    return _LENGTH.pack(len(body)) + body


def body_length(prefix: bytes) -> int:
    """Return how many bytes follow this prefix; WireError if that cannot be a frame."""
    length: int = _LENGTH.unpack(prefix)[0]
    if length > MAX_FRAME_BYTES:
        raise WireError(f"a pipe frame of {length} bytes; the limit is {MAX_FRAME_BYTES}")
    return length


def is_whole(data: bytes) -> bool:
    """Return whether this is one frame, and nothing after it."""
    return (
        len(data) >= LENGTH_BYTES and body_length(data[:LENGTH_BYTES]) == len(data) - LENGTH_BYTES
    )


def decode_to_engine(body: bytes) -> ToEngine:
    """Return the frame; WireError if this is none an agent sends."""
    try:
        return _CONVERTER.structure(_map(body), ToEngine)  # type: ignore[arg-type]  # a union is fine
    except _UNDECODABLE as error:
        raise _undecodable(body, error) from error


def decode_from_engine(body: bytes) -> FromEngine:
    """Return the frame; WireError if this is none an engine sends."""
    try:
        value = _map(body)
        if value.get("type") == "Step":
            return _step_of(value)
        return _CONVERTER.structure(value, FromEngine)  # type: ignore[arg-type]  # a union is fine
    except _UNDECODABLE as error:
        raise _undecodable(body, error) from error


def _map(body: bytes) -> dict[str, object]:
    value = msgpack.unpackb(body, strict_map_key=False)
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__} instead of a map")
    return value


_UNDECODABLE = (
    BaseValidationError,
    StructureHandlerNotFoundError,
    KeyError,
    TypeError,
    ValueError,
    msgpack.UnpackException,
)


def _undecodable(body: bytes, error: BaseException) -> WireError:
    return WireError(f"a pipe frame of {len(body)} bytes does not decode: {error!r}")
