"""Headers of GGUF files, whole, cut and hostile."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.processes.engine.llama.gguf_header import (
    MAX_HEADER_BYTES,
    HeaderTooLargeError,
    NeedsMoreError,
    NotGgufError,
    read_header,
)
from paddler_trio.processes.engine.proof import BUNDLED_MODEL

BUNDLED = BUNDLED_MODEL.read_bytes()


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def file(keys: bytes = b"", *, n_keys: int = 0, n_tensors: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys) + keys


def test_header_of_a_real_model_ends_where_the_library_puts_the_tensors() -> None:
    header = read_header(memoryview(BUNDLED))
    reader = gguf.GGUFReader(BUNDLED_MODEL)
    assert header.end == reader.data_offset
    assert header.n_tensors == len(reader.tensors)
    assert header.architecture == "llama"
    assert header.number("llama.block_count") == 6


def test_every_kind_of_value_is_read_or_skipped(tmp_path: Path) -> None:
    path = tmp_path / "kinds.gguf"
    writer = gguf.GGUFWriter(path, "any")
    for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{kind}")(f"a.{kind}", 7)
    writer.add_float32("a.float32", 0.5)
    writer.add_float64("a.float64", 0.25)
    writer.add_bool("a.bool", True)
    writer.add_string("a.long", "x" * 5000)
    writer.add_array("a.texts", ["one", "", "three"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_tensor("t", np.ones((3, 5), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(memoryview(path.read_bytes()))
    assert {header.number(f"a.{kind}") for kind in ("uint8", "int16", "uint64", "int64")} == {7}
    assert (header.values["a.float32"], header.values["a.float64"]) == (0.5, 0.25)
    assert header.values["a.bool"] is True
    assert header.values.keys().isdisjoint({"a.long", "a.texts", "a.numbers"})
    assert header.end == gguf.GGUFReader(path).data_offset


@given(st.integers(0, read_header(memoryview(BUNDLED)).end - 32))
def test_a_cut_header_asks_for_more_and_never_for_what_is_not_needed(length: int) -> None:
    end = read_header(memoryview(BUNDLED)).end
    with pytest.raises(NeedsMoreError) as raised:
        read_header(memoryview(BUNDLED)[:length])
    assert length < raised.value.num_bytes <= end


@given(st.binary(max_size=200))
def test_any_bytes_are_a_header_or_refused(tail: bytes) -> None:
    for head in (b"", b"GGUF", file()[:8], file(n_keys=3, n_tensors=2)):
        with contextlib.suppress(NotGgufError, HeaderTooLargeError, NeedsMoreError):
            read_header(memoryview(head + tail))


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"PK\x03\x04" + bytes(100), "begins with b'PK"),
        (file(version=1), "version is 1"),
        (file(version=0x03000000), "version is 50331648"),
        (file(n_tensors=10**18), "announces 1000000000000000000 tensors"),
        (file(n_keys=10**18), "announces 1000000000000000000 keys"),
        (file(struct.pack("<Q", 10**18), n_keys=1), "a key has 1000000000000000000 bytes"),
        (file(text("k") + struct.pack("<I", 13), n_keys=1), "unknown type 13"),
        (file(text("k") + struct.pack("<IIQ", 9, 9, 1), n_keys=1), "array of the unknown type 9"),
        (file(text("t") + struct.pack("<I", 5), n_tensors=1), "5 dimensions"),
        (
            file(text("general.alignment") + struct.pack("<II", 4, 0), n_keys=1),
            "general.alignment is 0",
        ),
    ],
)
def test_what_is_no_header_is_named(data: bytes, cause: str) -> None:
    with pytest.raises(NotGgufError, match=cause):
        read_header(memoryview(data))


@pytest.mark.parametrize(
    "value",
    [
        struct.pack("<IQ", 8, 10**18),  # a text
        struct.pack("<IIQ", 9, 4, 10**18),  # numbers
        struct.pack("<IIQ", 9, 8, 10**18),  # texts
        struct.pack("<IIQQ", 9, 8, 2, 2**63),  # a text among texts
        struct.pack("<IIQ", 9, 0, MAX_HEADER_BYTES),
    ],
)
def test_a_size_beyond_the_limit_is_refused_before_it_is_read(value: bytes) -> None:
    with pytest.raises(HeaderTooLargeError, match="the limit"):
        read_header(memoryview(file(text("k") + value + bytes(64), n_keys=1)))
