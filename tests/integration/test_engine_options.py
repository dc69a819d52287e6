"""The operator's engine settings: each does something, and what cannot be done is refused."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from engine_client import GREEDY, LOAD, STORY, running

from lora_adapters import write_lora
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.engine.engine_pipe import LoadFailed, Ready
from paddler_trio.wire.engine.engine_settings import EngineSettings


def answer(vocabulary: Vocabulary, settings: EngineSettings) -> bytes:
    with running(vocabulary) as engine:
        ready = engine.load(attrs.evolve(LOAD, settings=settings))
        assert isinstance(ready, Ready), ready
        engine.start(1, STORY, max_tokens=24, sampling=attrs.evolve(GREEDY, ignore_eos=True))
        engine.until_ended(1)
        return engine.texts[1]


def test_an_adapter_changes_what_the_model_says_by_its_scale(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    path = write_lora(tmp_path / "adapter.gguf", BUNDLED_MODEL)
    plain = answer(vocabulary, EngineSettings())
    assert answer(vocabulary, EngineSettings(lora=[f"{path}=0.0"])) == plain
    assert answer(vocabulary, EngineSettings(lora=[str(path)])) != plain


def test_positions_can_be_stretched(vocabulary: Vocabulary) -> None:
    stretched = EngineSettings(rope_scaling="linear", rope_freq_scale=0.25)
    assert answer(vocabulary, stretched) != answer(vocabulary, EngineSettings())


@pytest.mark.parametrize(
    "settings",
    [
        EngineSettings(use_mmap=False, flash_attention="off"),
        EngineSettings(flash_attention="on", swa_full=True, offload_kqv=False),
        EngineSettings(tensor_overrides=["ffn_.*=CPU"], tensor_split=[1.0]),
        EngineSettings(split_mode="none", main_gpu=0),
    ],
)
def test_where_things_lie_changes_no_answer(
    vocabulary: Vocabulary, settings: EngineSettings
) -> None:
    assert answer(vocabulary, settings)[:20] == answer(vocabulary, EngineSettings())[:20]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (EngineSettings(flash_attention="maybe"), ["flash_attention", "'maybe'", "auto, on, off"]),
        (EngineSettings(rope_scaling="cubic"), ["rope_scaling", "'cubic'", "yarn"]),
        (EngineSettings(split_mode="odd"), ["split_mode", "'odd'", "layer"]),
        (EngineSettings(tensor_overrides=["x=Moon"]), ["tensor override", "x=Moon", "CPU"]),
        (EngineSettings(tensor_split=[1.0] * 99), ["tensor_split", "99"]),
        (EngineSettings(lora=["/nowhere.gguf"]), ["lora", "/nowhere.gguf"]),
        (EngineSettings(lora=["/nowhere.gguf=much"]), ["lora", "number"]),
        (EngineSettings(lora=[str(BUNDLED_MODEL)]), ["LoRA adapter", str(BUNDLED_MODEL)]),
        (EngineSettings(draft_model="/nowhere.gguf"), ["--draft-model", "/nowhere.gguf"]),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    vocabulary: Vocabulary, settings: EngineSettings, words: list[str]
) -> None:
    with running(vocabulary) as engine:
        failed = engine.load(attrs.evolve(LOAD, settings=settings))
        assert isinstance(failed, LoadFailed)
        for word in words:
            assert word in failed.reason


def test_a_build_without_rpc_says_how_to_get_one(vocabulary: Vocabulary) -> None:
    with running(vocabulary) as engine:
        failed = engine.load(attrs.evolve(LOAD, settings=EngineSettings(rpc=["127.0.0.1:1"])))
        assert isinstance(failed, LoadFailed)
        assert "GGML_RPC=ON" in failed.reason or "127.0.0.1:1" in failed.reason
