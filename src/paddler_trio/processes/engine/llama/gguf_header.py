"""Find where the header of a GGUF file ends, and the few values of it that are needed before
llama.cpp reads it.

    magic "GGUF" | version | tensors | keys | key, type, value ... | name, shape, type, offset ...

Integers are little-endian. The file may be hostile: every count and length is compared with what
is left, and nothing is allocated that the file announces.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

MAX_HEADER_BYTES: Final = 64 << 20
"""The largest vocabularies of today (260,000 tokens and their merges) take 16 MB."""
MAX_TENSORS: Final = 1 << 18
MAX_KEYS: Final = 1 << 16
MAX_TEXTS: Final = 4_000_000
"""The texts in one list, such as the tokens, or the merges of these: ten times the most there
are."""
MAX_VALUE_BYTES: Final = 1024
"""Longer texts are skipped: nobody asks for them."""
_FIXED: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_FIXED_SIZES: Final = {kind: struct.calcsize(code) for kind, code in _FIXED.items()} | {12: 8}
_STRING, _ARRAY = 8, 9
_CLASSIFIERS: Final = frozenset({"cls.weight", "cls.output.weight"})
"""llama.cpp's names of them; a reranker has one or both."""
_VERSIONS: Final = (2, 3)
_ALIGNMENT: Final = 32
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")

Value = int | float | str | bool


class NotGgufError(Exception):
    """The bytes are no header of a GGUF file; the text names what is wrong, and where."""


class HeaderTooLargeError(Exception):
    """The header is larger than ``MAX_HEADER_BYTES``."""


class NeedsMoreError(Exception):
    """The header goes on behind the bytes that are here; at least ``num_bytes`` are needed."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(num_bytes)
        self.num_bytes = num_bytes


@attrs.frozen
class GgufHeader:
    """The contents of a header.

    Args:
      end: where the tensors' data begin, in bytes.
      values: single values that are no longer than ``MAX_VALUE_BYTES``, by key.
      has_classifier: there are weights of a head that classifies.
    """

    end: int
    n_tensors: int
    values: Mapping[str, Value] = attrs.field(repr=False)
    has_classifier: bool = False

    @property
    def architecture(self) -> str:
        """Empty if there is none."""
        return str(self.values.get("general.architecture", ""))

    def number(self, key: str) -> int:
        """Return an integer; 0 if there is none."""
        value = self.values.get(key, 0)
        return value if isinstance(value, int) else 0


def read_header(data: memoryview) -> GgufHeader:
    """Return the header at the beginning of ``data``, which may end in the middle of it.

    Errors:
      NotGgufError, HeaderTooLargeError: whatever follows.
      NeedsMoreError: call again with more bytes.
    """
    reader = _Reader(data)
    if bytes(reader.take(4)) != b"GGUF":
        raise NotGgufError(f"it begins with {bytes(data[:4])!r}, not with b'GGUF'")
    version = reader.uint32()
    if version not in _VERSIONS:
        raise NotGgufError(f"its GGUF version is {version}, llama.cpp reads 2 and 3")
    n_tensors = reader.count("tensors", MAX_TENSORS)
    n_keys = reader.count("keys", MAX_KEYS)
    values: dict[str, Value] = {}
    for _ in range(n_keys):
        key = reader.short_text("a key")
        value = reader.value(key)
        if value is not None:
            values[key] = value
    has_classifier = False
    for _ in range(n_tensors):
        name = reader.short_text("the name of a tensor")
        n_dims = reader.uint32()
        if n_dims > 4:
            raise NotGgufError(f"tensor {name!r} has {n_dims} dimensions, the limit is 4")
        reader.take(n_dims * 8 + 12)  # the shape, the type and the offset
        has_classifier |= name in _CLASSIFIERS
    alignment = values.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment > 1 << 20:
        raise NotGgufError(f"general.alignment is {alignment!r}")
    end = -(-reader.position // alignment) * alignment
    return GgufHeader(end, n_tensors, values, has_classifier)


def header_of(path: str) -> GgufHeader | None:
    """Return the header of a file that llama.cpp has read; None if it is gone or too large."""
    try:
        with (
            Path(path).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping,
            memoryview(mapping) as data,
        ):
            return read_header(data)
    except (OSError, ValueError, NotGgufError, HeaderTooLargeError, NeedsMoreError):
        return None


@attrs.define
class _Reader:
    data: memoryview
    position: int = 0

    def take(self, num_bytes: int) -> memoryview:
        """Return the next bytes."""
        stop = self.position + num_bytes
        if stop > min(len(self.data), MAX_HEADER_BYTES):
            raise _beyond(stop)
        piece = self.data[self.position : stop]
        self.position = stop
        return piece

    def uint32(self) -> int:
        number: int = _UINT32.unpack(self.take(4))[0]
        return number

    def uint64(self) -> int:
        number: int = _UINT64.unpack(self.take(8))[0]
        return number

    def count(self, what: str, limit: int) -> int:
        number = self.uint64()
        if number > limit:
            raise NotGgufError(f"it announces {number} {what}, the limit is {limit}")
        return number

    def short_text(self, what: str) -> str:
        length = self.uint64()
        if length > MAX_VALUE_BYTES:
            raise NotGgufError(f"{what} has {length} bytes, the limit is {MAX_VALUE_BYTES}")
        return bytes(self.take(length)).decode(errors="replace")

    def value(self, key: str) -> Value | None:
        """Return a single value; None, and skipped, if it is long or there are several."""
        kind = self.uint32()
        if kind == _ARRAY:
            self._skip_array(key)
            return None
        if kind == _STRING:
            length = self.uint64()
            text = self.take(length)
            return bytes(text).decode(errors="replace") if length <= MAX_VALUE_BYTES else None
        if kind not in _FIXED_SIZES:
            raise NotGgufError(f"the value of {key!r} is of the unknown type {kind}")
        raw = self.take(_FIXED_SIZES[kind])
        if kind == 12:
            return float(struct.unpack("<d", raw)[0])
        value: Value = struct.unpack(f"<{_FIXED[kind]}", raw)[0]
        return value

    def _skip_array(self, key: str) -> None:
        kind, length = self.uint32(), self.uint64()
        if kind in _FIXED_SIZES:
            self.take(length * _FIXED_SIZES[kind])
            return
        if kind != _STRING:
            raise NotGgufError(f"{key!r} is an array of the unknown type {kind}")
        if length > MAX_TEXTS:
            raise HeaderTooLargeError(f"{key!r} announces {length} texts, the limit is {MAX_TEXTS}")
        data, position, present = self.data, self.position, len(self.data)
        unpack = _UINT64.unpack_from
        for index in range(length):  # hundreds of thousands of them
            if position + 8 > present:
                raise _beyond(position + 8 * (length - index))
            position += 8 + unpack(data, position)[0]
        if position > min(present, MAX_HEADER_BYTES):
            raise _beyond(position)
        self.position = position


def _beyond(stop: int) -> NeedsMoreError | HeaderTooLargeError:
    """Return the error of a header that goes on to ``stop`` at least."""
    if stop > MAX_HEADER_BYTES:
        return HeaderTooLargeError(
            f"its header is larger than {MAX_HEADER_BYTES >> 20} MiB, the limit"
        )
    return NeedsMoreError(stop)
