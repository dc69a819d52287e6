"""Frames between an agent and its engine process: tokens only, nothing about language.

A frame is a 4-byte big-endian length and a MessagePack map tagged by ``type``. Both ends come
from one installation, so the format has no version: the engine says which package it runs in its
first frame and the agent compares.

A :class:`Step` carries everything one pass of the engine produced, for all sequences at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import attrs
import msgpack
from cattrs import BaseValidationError, Converter, StructureHandlerNotFoundError
from cattrs.strategies import configure_tagged_union

from paddler_trio.errors import WireError

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""A prompt of ten million tokens is about 50 MB; anything near this limit is a broken pipe."""

_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size


# ------------------------------------------------------------------ agent -> engine


@attrs.frozen
class LoadModel:
    """The first frame: what to load and how. Paths are local to the engine's machine."""

    model_path: str
    slots: int
    context_size: int
    n_batch: int
    n_gpu_layers: int
    k_cache_dtype: str
    v_cache_dtype: str
    threads: int
    package_version: str


@attrs.frozen
class Sampling:
    """How the next token is drawn; ``temperature`` <= 0 means the most likely one.

    ``penalty_last_n`` = -1 means the whole context. ``seed`` is 32 bits, unsigned.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    penalty_last_n: int
    penalty_repeat: float
    penalty_frequency: float
    penalty_presence: float
    seed: int


@attrs.frozen
class Grammar:
    """A GBNF grammar that every drawn token must fit."""

    gbnf: str
    root: str


@attrs.frozen
class StartSequence:
    """Continue these tokens. ``key`` is never used twice on one pipe.

    ``drawn`` are tokens that another engine drew already: they are computed like the prompt and
    taken by grammar and penalties like any drawn token, and they count towards ``max_tokens``.
    """

    key: int
    tokens: list[int]
    drawn: list[int]
    max_tokens: int
    sampling: Sampling
    grammar: Grammar | None


@attrs.frozen
class StopSequence:
    """End this sequence at the next pass; answered by an ending like any other."""

    key: int


@attrs.frozen
class Ping:
    """Are you there? Answered by a :class:`Pong` at once, also in the middle of a long pass."""


ToEngine: TypeAlias = LoadModel | StartSequence | StopSequence | Ping


# ------------------------------------------------------------------ engine -> agent


@attrs.frozen
class Loading:
    """How much of the weights is in memory, 0..1."""

    progress: float


@attrs.frozen
class LoadFailed:
    """The model cannot serve; the engine exits after saying so.

    ``stage`` is ``model`` (the file) or ``context`` (its settings on this machine).
    """

    stage: str
    reason: str


@attrs.frozen
class Ready:
    """Loaded and warmed up. ``cells`` is the KV space of one slot, in tokens."""

    cells: int
    n_batch: int
    n_ctx_train: int
    n_vocab: int


@attrs.frozen
class Ending:
    """Why a sequence is over; always the last word on its key.

    ``reason``: ``stop`` (the model ended it), ``length`` (max_tokens), ``cells`` (its part of the
    context is full), ``stopped`` (asked to), ``refused`` (cannot fit), ``grammar_invalid``,
    ``grammar_rejected`` or ``failed``. ``detail`` is a sentence for the last four.
    """

    key: int
    reason: str
    num_prompt_tokens: int
    num_cached_tokens: int
    detail: str = ""


@attrs.frozen
class Drawn:
    """One token of one sequence. ``text`` are its bytes, possibly part of a character."""

    key: int
    token: int
    text: bytes


@attrs.frozen
class Step:
    """Everything that one pass produced."""

    drawn: list[Drawn]
    endings: list[Ending]


@attrs.frozen
class Pong:
    """The engine process runs."""


FromEngine: TypeAlias = Loading | LoadFailed | Ready | Step | Pong


def _converter() -> Converter:
    converter = Converter(forbid_extra_keys=True)
    configure_tagged_union(ToEngine, converter, tag_name="type")
    configure_tagged_union(FromEngine, converter, tag_name="type")
    return converter


_CONVERTER = _converter()


def encode(frame: ToEngine | FromEngine) -> bytes:
    """The whole frame, length prefix included."""
    family = ToEngine if isinstance(frame, ToEngine) else FromEngine
    body: bytes = msgpack.packb(_CONVERTER.unstructure(frame, unstructure_as=family))
    return _LENGTH.pack(len(body)) + body


def body_length(prefix: bytes) -> int:
    """How many bytes follow this prefix; WireError if that cannot be a frame."""
    length: int = _LENGTH.unpack(prefix)[0]
    if length > MAX_FRAME_BYTES:
        raise WireError(f"a pipe frame of {length} bytes; the limit is {MAX_FRAME_BYTES}")
    return length


def decode_to_engine(body: bytes) -> ToEngine:
    """WireError if this is not a frame an agent sends."""
    with _telling(body):
        return _CONVERTER.structure(_map(body), ToEngine)  # type: ignore[arg-type]  # a union is fine


def decode_from_engine(body: bytes) -> FromEngine:
    """WireError if this is not a frame an engine sends."""
    with _telling(body):
        return _CONVERTER.structure(_map(body), FromEngine)  # type: ignore[arg-type]  # a union is fine


def _map(body: bytes) -> dict[str, object]:
    value = msgpack.unpackb(body)
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__} instead of a map")
    return value


@contextmanager
def _telling(body: bytes) -> Iterator[None]:
    try:
        yield
    except (
        BaseValidationError,
        StructureHandlerNotFoundError,
        KeyError,
        TypeError,
        ValueError,
        msgpack.UnpackException,
    ) as error:
        raise WireError(f"a pipe frame of {len(body)} bytes does not decode: {error!r}") from error
