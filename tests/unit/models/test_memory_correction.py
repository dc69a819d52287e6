"""Former loads correct the next prediction: upwards only, and within bounds."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.models.memory.memory_correction import (
    HOST,
    MAX_CORRECTION_BYTES,
    MAX_OBSERVATIONS,
    MAX_SHARE,
    MemoryHistory,
    Observation,
    corrected,
    model_key,
    observation,
    parameters_key,
)
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.engine.memory_need import DeviceNeed, HostNeed, MemoryNeed, MemoryUse

MIB = 1 << 20
NEED = MemoryNeed(
    devices=(
        DeviceNeed(name="CPU", weights=400 * MIB, compute=10 * MIB),
        DeviceNeed(name="CUDA0", kind="gpu", weights=4000 * MIB, kv=1000 * MIB),
        DeviceNeed(name="CUDA1", kind="gpu"),
    ),
    host=HostNeed(process=60 * MIB, outputs=30 * MIB),
    architecture="llama",
    n_layers=32,
    n_ctx_train=8192,
    n_ctx=32768,
    n_ctx_slot=8192,
    n_vocab=32000,
    file_bytes=4400 * MIB,
)
USE = MemoryUse(
    devices=NEED.devices, taken={"CUDA0": 5400 * MIB}, resident=150 * MIB, mapped=390 * MIB
)
SEEN = observation("m", "p", NEED, USE)
LOAD = LoadModel("/m.gguf", 4, 8192, 512, 99, "F16", "F16", 4, "1")


def gpu(need: MemoryNeed) -> int:
    return next(d.correction for d in need.devices if d.name == "CUDA0")


def test_a_load_teaches_what_it_took_beyond_its_prediction() -> None:
    assert SEEN.predicted == {"CUDA0": 5000 * MIB, HOST: 500 * MIB}
    assert SEEN.actual == {"CUDA0": 5400 * MIB, HOST: 540 * MIB}
    again = corrected(NEED, "m", "p", [SEEN])
    assert gpu(again) == 400 * MIB
    assert again.host.correction == 40 * MIB
    assert again.host_needed == 540 * MIB


def test_a_correction_is_not_learned_twice() -> None:
    again = corrected(NEED, "m", "p", [SEEN])
    assert observation("m", "p", again, USE) == SEEN


def test_caches_that_are_empty_yet_hide_nothing() -> None:
    need = attrs.evolve(NEED, host=attrs.evolve(NEED.host, prefixes=999 * MIB, images=99 * MIB))
    assert observation("m", "p", need, USE) == SEEN


def test_pages_of_tensors_that_were_laid_out_anew_are_no_need() -> None:
    cpu, *gpus = NEED.devices
    both = attrs.evolve(cpu, weights=cpu.weights + 380 * MIB)  # the mapping, and what was made
    use = attrs.evolve(
        USE, devices=(both, *gpus), resident=USE.resident + 380 * MIB, mapped=USE.mapped
    )
    assert observation("m", "p", NEED, use).actual[HOST] == 540 * MIB


def test_equal_parameters_come_before_the_model_and_the_model_before_others() -> None:
    def took(model: str, parameters: str, more: int) -> Observation:
        actual = {name: size + more * MIB for name, size in SEEN.predicted.items()}
        return Observation(model, parameters, SEEN.predicted, actual)

    seen = [took("other", "p", 10), took("m", "q", 20), took("m", "p", 30)]
    assert gpu(corrected(NEED, "m", "p", seen)) == 30 * MIB
    assert gpu(corrected(NEED, "m", "r", seen)) == 25 * MIB
    new = corrected(NEED, "new", "p", seen)
    assert gpu(new) == 20 * MIB
    assert new.host.correction == 0, "another model's vocabulary is another model's"
    assert new.devices[2].correction == 0, "nothing is loaded there"


@given(
    st.lists(
        st.builds(
            Observation,
            st.sampled_from(["m", "other"]),
            st.sampled_from(["p", "q"]),
            st.dictionaries(st.sampled_from([HOST, "CUDA0", "CUDA9"]), st.integers(0, 2**60)),
            st.dictionaries(
                st.sampled_from([HOST, "CUDA0", "CUDA9"]), st.integers(-(2**60), 2**60)
            ),
        ),
        max_size=8,
    )
)
def test_whatever_was_seen_nothing_shrinks_and_nothing_explodes(seen: list[Observation]) -> None:
    need = corrected(NEED, "m", "p", seen)
    for before, after in zip(NEED.devices, need.devices, strict=True):
        assert attrs.evolve(after, correction=0) == before
        assert 0 <= after.correction <= max(MAX_CORRECTION_BYTES, before.needed * MAX_SHARE)
    assert 0 <= need.host.correction <= max(MAX_CORRECTION_BYTES, NEED.host_needed * MAX_SHARE)


def test_the_history_keeps_the_newest(tmp_path: Path) -> None:
    history = MemoryHistory(tmp_path / "deep" / "memory.json")
    assert history.read() == []
    history.add(SEEN)
    assert history.read() == [SEEN]
    rows = json.loads(history.path.read_bytes()) * MAX_OBSERVATIONS
    history.path.write_text(json.dumps(rows))
    history.add(attrs.evolve(SEEN, parameters="newest"))
    kept = history.read()
    assert len(kept) == MAX_OBSERVATIONS
    assert kept[-1] == attrs.evolve(SEEN, parameters="newest")
    assert len(json.loads(history.path.read_bytes())) == MAX_OBSERVATIONS


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b'[{"model": "m"}]',
        b'[{"model": "m", "parameters": "p", "predicted": {"CPU": "x"}, "actual": {}}]',
        b"[" * 100_000,
        b"[" + b" " * (1 << 20) + b"]",
    ],
)
def test_a_history_of_nonsense_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    history = MemoryHistory(tmp_path / "memory.json")
    history.path.write_bytes(content)
    assert history.read() == []
    history.add(SEEN)
    assert history.read() == [SEEN]


def test_keys_name_what_memory_depends_on(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "m.gguf").write_bytes(b"12345")
    one, two = str(tmp_path / "a" / "m.gguf"), str(tmp_path / "b" / "m.gguf")
    assert model_key([one]) == model_key([two])
    Path(two).write_bytes(b"123456")
    assert model_key([one]) != model_key([two])
    same = attrs.evolve(LOAD, model_path="/elsewhere", threads=9)
    assert parameters_key(same) == parameters_key(LOAD)
    for other in (
        attrs.evolve(LOAD, slots=5),
        attrs.evolve(LOAD, embeddings=True),
        attrs.evolve(LOAD, settings=EngineSettings(unified=True)),
    ):
        assert parameters_key(other) != parameters_key(LOAD)
