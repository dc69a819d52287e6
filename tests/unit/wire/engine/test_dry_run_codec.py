"""Frames between whoever asks about memory and the dry run."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.errors import WireError
from paddler_trio.wire.engine.dry_run_frames import (
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    DryRunAnswer,
    HeaderIncomplete,
    MeasureMemory,
    MemoryMeasured,
    MemoryUnknown,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
    frame_length,
)
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.engine.memory_need import DeviceNeed, HostNeed, MemoryNeed

BYTES = st.integers(0, 2**62)
DEVICES = st.builds(
    DeviceNeed, name=st.text(max_size=9), kind=st.sampled_from(["cpu", "gpu"]), weights=BYTES
)
NEEDS = st.builds(
    MemoryNeed,
    devices=st.lists(DEVICES, max_size=3).map(tuple),
    host=st.builds(HostNeed, process=BYTES, outputs=BYTES),
    architecture=st.text(max_size=9),
    n_layers=BYTES,
    n_ctx_train=BYTES,
    n_ctx=BYTES,
    n_ctx_slot=BYTES,
    n_vocab=BYTES,
    file_bytes=BYTES,
    is_extrapolated=st.booleans(),
)
ANSWERS: st.SearchStrategy[DryRunAnswer] = st.one_of(
    st.builds(MemoryMeasured, NEEDS),
    st.builds(HeaderIncomplete, st.text(), BYTES),
    st.builds(MemoryUnknown, st.text(), st.text()),
)


@given(ANSWERS)
def test_answers_arrive_as_they_were_sent(answer: DryRunAnswer) -> None:
    frame = encode_answer(answer)
    assert frame_length(frame[:LENGTH_BYTES]) == len(frame) - LENGTH_BYTES
    assert decode_answer(frame[LENGTH_BYTES:]) == answer


@given(st.lists(st.text(), max_size=3), st.dictionaries(st.text(), BYTES, max_size=3))
def test_questions_arrive_as_they_were_sent(parts: list[str], present: dict[str, int]) -> None:
    settings = EngineSettings(tensor_split=[0.5, 0.5], draft_model="/d.gguf")
    load = LoadModel("/m.gguf", 4, 8192, 512, -1, "F16", "Q8_0", 2, "1", settings)
    question = MeasureMemory(load, parts, present)
    assert decode_question(encode_question(question)[LENGTH_BYTES:]) == question


@given(st.binary(max_size=99))
def test_nonsense_is_an_error(body: bytes) -> None:
    for decode in (decode_answer, decode_question):
        with pytest.raises(WireError):
            decode(body)


@pytest.mark.parametrize("value", [None, [], {"type": "MemoryMeasured"}, {"type": "x"}, {"a": 1}])
def test_other_values_are_an_error(value: object) -> None:
    with pytest.raises(WireError):
        decode_answer(msgpack.packb(value))


def test_a_frame_has_a_limit() -> None:
    with pytest.raises(WireError, match=str(MAX_FRAME_BYTES)):
        frame_length((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


def test_what_a_device_and_a_host_hold_adds_up() -> None:
    gpu = DeviceNeed(name="CUDA0", kind="gpu", weights=1, kv=2, compute=4, embedding=8)
    cpu = DeviceNeed(name="CPU", projection=16, draft=32, lora=64, correction=128)
    host = HostNeed(process=1, cells=2, outputs=4, prefixes=8, images=16, correction=32)
    need = MemoryNeed(
        devices=(cpu, gpu),
        host=host,
        architecture="llama",
        n_layers=1,
        n_ctx_train=1,
        n_ctx=1,
        n_ctx_slot=1,
        n_vocab=1,
        file_bytes=1,
    )
    assert (gpu.needed, cpu.needed, host.needed, need.host_needed) == (15, 240, 63, 303)
    assert repr(need) == "<MemoryNeed llama: CPU 0 MiB, CUDA0 0 MiB, host 0 MiB>"
