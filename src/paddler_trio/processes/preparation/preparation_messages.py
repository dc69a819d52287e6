"""Messages between an agent and its preparation processes.

Frames are a length and a pickle. The agent's are trusted. A worker's are not, since its input is
untrusted: they are read by :class:`ResultReader`, which makes nothing but the values of this
package. Objects that both sides have from the start, such as the markers of a template, are sent as
numbers.
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from enum import EnumMeta
from typing import Any, TypeAlias

import attrs

from paddler_trio.errors import WireError

# Results are read in the agent's event loop, which should not stop for an import: these two define
# values that are in some, though not the type of any field below.
from paddler_trio.language.answers import bare_calls, families  # noqa: F401
from paddler_trio.language.answers.output_processor import OutputProcessor, RawResult
from paddler_trio.language.embedding_results import Form, PreparedDocument
from paddler_trio.wire.engine.engine_pipe import Ready
from paddler_trio.wire.paddler.agent_issue import AgentIssue
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.trio.request_frame import RequestFrame
from paddler_trio.wire.trio.trio_link import Answer, render_extension

LENGTH = struct.Struct("<I")
GREETING = struct.Struct("<i")
"""The process id of a worker; a descriptor for it comes with it."""
MAX_FRAME_BYTES = 512 * 1024 * 1024
_PACKAGE = "paddler_trio."
_OTHERS = {
    ("encodings.utf_8", "IncrementalDecoder"),
    ("collections", "deque"),
    ("collections", "Counter"),
    ("functools", "partial"),
    ("re", "_compile"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("builtins", "object"),
    ("builtins", "bytearray"),
    ("copyreg", "_reconstructor"),
}


# ------------------------------------------------------------------------------- fork server


@attrs.frozen
class LanguageFacts:
    """Facts that the agent itself needs of the language that a fork server has read.

    ``shared`` are the objects that results refer to by number.
    """

    parameters: InferenceParameters
    metadata: Mapping[str, str]
    fingerprint: str
    shared: tuple[object, ...] = attrs.field(repr=False)


@attrs.frozen
class LanguageRefused:
    """The language cannot be read; trying again changes nothing."""

    issue: AgentIssue
    reason: str


# ------------------------------------------------------------------------------------- jobs


@attrs.frozen
class Job:
    """One request to prepare.

    Args:
      key: of the sequence that the engine is to start.
      ready: the engine's greeting.
    """

    frame: RequestFrame
    key: int
    ready: Ready


@attrs.frozen
class PreparedGeneration:
    """``start`` is the whole frame for the engine, ``output`` reads its tokens.

    ``num_prompt_tokens`` is 0 unless the answer is complete already.
    """

    start: bytes = attrs.field(repr=False)
    output: OutputProcessor
    num_prompt_tokens: int


@attrs.frozen
class PreparedEmbedding:
    """Documents as chunks of tokens, and how their vectors become results."""

    documents: tuple[PreparedDocument, ...] = attrs.field(repr=False)
    form: Form


@attrs.frozen
class Answered:
    """``frame`` answers a question; it goes over the link as it is."""

    frame: bytes = attrs.field(repr=False)


@attrs.frozen
class Refused:
    """The request ends before it began; ``result`` is its ending.

    Of an embedding ``result`` is ``{"Error": text}``; a question is answered instead.
    ``is_elsewhere``: another agent may have what it needs.
    """

    result: RawResult
    is_elsewhere: bool = False


Prepared: TypeAlias = PreparedGeneration | PreparedEmbedding | Answered | Refused


@attrs.frozen
class JobDone:
    """``is_last``: the worker ends now, because it grew."""

    prepared: Prepared
    is_last: bool


# ---------------------------------------------------------------------------------- pickles


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[object]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._numbers = {id(each): number for number, each in enumerate(shared)}

    def persistent_id(self, obj: object) -> int | None:
        return self._numbers.get(id(obj))


class ResultReader(pickle.Unpickler):
    """Reads a worker's pickle; WireError for what is no value of this package."""

    def __init__(self, body: bytes, shared: Sequence[object]) -> None:
        super().__init__(io.BytesIO(body))
        self._shared = shared

    def persistent_load(self, pid: Any) -> object:
        if isinstance(pid, int) and 0 <= pid < len(self._shared):
            return self._shared[pid]
        raise WireError(f"a worker refers to the shared object {str(pid)[:40]!r}")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _enum_member  # how Python 3.11.0 to 3.11.3 write one
        if module.startswith(_PACKAGE) or (module, name) in _OTHERS:
            return super().find_class(module, name)
        raise WireError(f"a worker sent a {module}.{name}"[:200])


def _enum_member(kind: object, name: object) -> object:
    if isinstance(kind, EnumMeta) and isinstance(name, str) and name in kind.__members__:
        return kind.__members__[name]
    raise WireError("a worker sent an attribute that is no member of an enumeration")


def frame_of(message: object, shared: Sequence[object] = ()) -> bytes:
    """Return the whole frame of a message, length included."""
    body: bytes | memoryview
    if shared:
        file = io.BytesIO()
        _Writer(file, shared).dump(message)
        body = file.getbuffer()
    else:  # a writer of ours is asked about each object: eight times as long for a small job
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def frame_length(prefix: bytes) -> int:
    """Return how many bytes follow; WireError if that cannot be a frame."""
    (length,) = LENGTH.unpack(prefix)
    if length > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {length} bytes, the limit is {MAX_FRAME_BYTES}")
    return int(length)


def read_result(body: bytes, shared: Sequence[object]) -> object:
    """Return what a worker sent; WireError if it is nothing that a worker sends."""
    try:
        return ResultReader(body, shared).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError) as error:
        raise WireError(f"a worker's frame of {len(body)} bytes is broken: {error}") from error


def receive_frame(connection: socket.socket) -> bytes | None:
    """Return the body of the next frame, blocking; None when the other side has ended."""
    prefix = _receive(connection, LENGTH.size)
    return None if prefix is None else _receive(connection, frame_length(prefix))


def _receive(connection: socket.socket, size_bytes: int) -> bytes | None:
    body = bytearray(size_bytes)
    view, filled = memoryview(body), 0
    while filled < size_bytes:
        count = connection.recv_into(view[filled:])
        if not count:
            return None
        filled += count
    return bytes(body)


def refused(job: Job, code: int, problem: str) -> Prepared:
    """Return the ending of a request that cannot be prepared; ``code`` mirrors HTTP status
    numbers."""
    frame = job.frame
    if frame.kind == "question":
        return Answered(render_extension(Answer(frame.id, None, problem, code)))
    if frame.kind == "embedding":
        return Refused({"Error": problem})
    if frame.is_extended and code < 500:
        return Refused({"BadRequest": {"field": "prompt", "message": problem}})
    return Refused({"SamplerError": problem})
