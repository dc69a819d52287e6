"""A dry run is not made again as long as nothing can have changed its answer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from paddler_trio.models.memory.memory_correction import MAX_NEEDS, KnownNeeds, question_of
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.engine.memory_need import DeviceNeed, HostNeed, MemoryNeed

CPU = DeviceNeed(name="CPU", free=1000, total=2000, weights=100)
NEED = MemoryNeed(
    devices=(CPU, DeviceNeed(name="BLAS", kind="accel")),
    host=HostNeed(process=10),
    architecture="llama",
    n_layers=2,
    n_ctx_train=2048,
    n_ctx=512,
    n_ctx_slot=512,
    n_vocab=100,
    file_bytes=100,
)


def load_of(model: Path, **changes: object) -> LoadModel:
    load = LoadModel(str(model), 1, 512, 512, 0, "F16", "F16", 1, "1")
    return attrs.evolve(load, **changes)  # type: ignore[arg-type]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"weights")
    return path


def test_an_answer_is_known_again_with_what_is_free_now(model: Path) -> None:
    known = KnownNeeds(lambda: 777)
    question = question_of(load_of(model), [str(model)])
    assert known.find(question) is None
    known.keep(question, NEED)
    again = question_of(load_of(model), [str(model)])
    devices = (attrs.evolve(CPU, free=777), NEED.devices[1])
    assert known.find(again) == attrs.evolve(NEED, devices=devices)


def replaced(model: Path) -> None:
    other = model.with_name("other")
    other.write_bytes(model.read_bytes())
    other.replace(model)


CHANGES: dict[str, Callable[[Path], object]] = {
    "written to": lambda model: os.utime(model, ns=(0, model.stat().st_mtime_ns + 1)),
    "longer": lambda model: model.write_bytes(b"weights, more of them"),
    "replaced": replaced,
    "gone": Path.unlink,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("which", ["first", "second", "projection"])
def test_a_file_that_changed_is_asked_about_anew(tmp_path: Path, change: str, which: str) -> None:
    files = {name: tmp_path / f"{name}.gguf" for name in ("first", "second", "projection")}
    for file in files.values():
        file.write_bytes(b"weights")
    load = load_of(files["first"], projection_path=str(files["projection"]))
    parts = [str(files["first"]), str(files["second"])]
    known = KnownNeeds(lambda: 777)
    known.keep(question_of(load, parts), NEED)
    assert known.find(question_of(load, parts)) is not None
    CHANGES[change](files[which])
    assert known.find(question_of(load, parts)) is None


def test_other_parameters_are_another_question(model: Path) -> None:
    known = KnownNeeds(lambda: 777)
    known.keep(question_of(load_of(model), [str(model)]), NEED)
    for change in ({"slots": 2}, {"context_size": 1024}, {"embeddings": True}):
        assert known.find(question_of(load_of(model, **change), [str(model)])) is None


@pytest.mark.parametrize(
    "settings",
    [
        EngineSettings(rpc=["127.0.0.1:1"]),
        EngineSettings(lora=["/a.gguf=0.5"]),
        EngineSettings(draft_model="/d.gguf"),
    ],
)
def test_what_depends_on_more_than_the_model_is_asked_each_time(
    model: Path, settings: EngineSettings
) -> None:
    assert question_of(load_of(model, settings=settings), [str(model)]) is None


@pytest.mark.parametrize(
    "need",
    [
        attrs.evolve(NEED, is_extrapolated=True),
        attrs.evolve(NEED, devices=(CPU, DeviceNeed(name="CUDA0", kind="gpu", free=5))),
        attrs.evolve(NEED, devices=(CPU, DeviceNeed(name="Vulkan0", kind="igpu"))),
    ],
)
def test_what_only_a_dry_run_shows_is_not_kept(model: Path, need: MemoryNeed) -> None:
    known = KnownNeeds(lambda: 777)
    question = question_of(load_of(model), [str(model)])
    known.keep(question, need)
    assert known.find(question) is None


def test_nothing_is_known_where_free_memory_is_not(model: Path) -> None:
    known = KnownNeeds(lambda: None)
    question = question_of(load_of(model), [str(model)])
    known.keep(question, NEED)
    assert known.find(question) is None


def test_the_oldest_answers_are_forgotten(model: Path) -> None:
    known = KnownNeeds(lambda: 777)
    questions = [
        question_of(load_of(model, context_size=512 * n), [str(model)])
        for n in range(1, MAX_NEEDS + 2)
    ]
    for question in questions[:-1]:
        known.keep(question, NEED)
    assert known.find(questions[0]) is not None, "used again: not the oldest any more"
    known.keep(questions[-1], NEED)
    assert known.find(questions[1]) is None
    assert known.find(questions[0]) is not None
