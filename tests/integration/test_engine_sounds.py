"""Sounds in the engine: heard as libmtmd itself would play them, found again, and refused."""

from __future__ import annotations

import base64
import ctypes
import math
from pathlib import Path

import attrs
import llama_cpp.llama_cpp as lib
import llama_cpp.mtmd_cpp as mtmd
import numpy as np
import pytest
from engine_client import GREEDY, LOAD, STORY, Engine, running
from test_engine_images import AFTER, BEFORE, RED, difference, reference_logprobs

from paddler_trio.language.sounds.sounds import read_sound
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.engine.engine_pipe import Ready
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.engine.media import MEDIA_TOKEN, Medium, Senses, Sound
from sound_models import RATE, TOKENS, SoundKind, tone, wav, write_ear
from vision_models import write_projector

KINDS: tuple[SoundKind, ...] = ("ultravox", "qwen2a", "gemma4ua")


@pytest.fixture(scope="module")
def ears(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("ears")
    return {kind: write_ear(folder / f"{kind}.gguf", kind=kind) for kind in KINDS}


def sound(hertz: float, *, seconds: float = 1.0) -> Sound:
    return Sound(tone(hertz, seconds=seconds).tobytes())


LOW, HIGH = sound(220), sound(2000)


def loaded(engine: Engine, projection: Path, **more: object) -> Ready:
    load = attrs.evolve(LOAD, projection_path=str(projection), context_size=8192, **more)
    ready = engine.load(load)
    assert isinstance(ready, Ready), ready
    return ready


def hearing(engine: Engine, key: int, *media: Medium, **more: object) -> None:
    tokens = engine.tokens(BEFORE) + [MEDIA_TOKEN] * len(media) + engine.tokens(AFTER)
    engine.start(key, tokens, media=list(media), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_hears_what_llama_cpp_would_play_it(
    vocabulary: Vocabulary, ears: dict[str, Path], kind: str
) -> None:
    """In small chunks here, at once there, a sound of 31 s in two pieces: the next token is as
    likely in both."""
    seconds = 2.0 if kind == "gemma4ua" else 31.0
    heard = sound(500, seconds=seconds)
    expected = reference_logprobs(ears[kind], heard)
    with running(vocabulary) as engine:
        ready = loaded(engine, ears[kind], n_batch=100, slots=2)
        assert not ready.senses.sees_images
        assert ready.senses.sound_rate == RATE
        a_second = TOKENS[kind] / (1 if kind == "gemma4ua" else 30)
        assert math.isclose(ready.senses.sound_s, ready.cells / a_second)
        engine.start(7, STORY, max_tokens=40)
        hearing(engine, 1, heard, max_tokens=1, logprobs=5)
        engine.until_ended(1, 7)
        (report,) = engine.reports[1]
    assert report.logprobs is not None
    for token, logprob in zip(report.logprobs.tokens, report.logprobs.values, strict=True):
        assert math.isclose(logprob, expected[token], abs_tol=0.15), token
    ending = engine.endings[1]
    assert ending.num_audio_tokens == 2 * TOKENS[kind]
    assert ending.num_image_tokens == 0


def test_a_file_is_decoded_as_llama_cpp_does_it(ears: dict[str, Path]) -> None:
    """Sample by sample, also where rate and channels change."""
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(
        str(BUNDLED_MODEL).encode(), lib.llama_model_default_params()
    )
    params = mtmd.mtmd_context_params_default()
    params.use_gpu = False
    context = mtmd.mtmd_init_from_file(str(ears["gemma4ua"]).encode(), model, params)
    try:
        for rate, channels in ((16_000, 1), (44_100, 2), (8000, 1)):
            content = wav(tone(300, seconds=0.5, rate=rate), rate=rate, channels=channels)
            buffer = (ctypes.c_uint8 * len(content)).from_buffer_copy(content)
            bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(context, buffer, len(content), False)
            count = mtmd.mtmd_bitmap_get_n_bytes(bitmap) // 4
            floats = ctypes.cast(mtmd.mtmd_bitmap_get_data(bitmap), ctypes.POINTER(ctypes.c_float))
            theirs = np.ctypeslib.as_array(floats, (count,)).copy()
            mtmd.mtmd_bitmap_free(bitmap)
            ours = np.frombuffer(
                read_sound(base64.b64encode(content).decode(), rate=RATE).samples, np.float32
            )
            assert 0 <= len(ours) - count <= 1600
            assert np.abs(ours[:count] - theirs).max() < 1e-6
    finally:
        mtmd.mtmd_free(context)
        lib.llama_model_free(model)


def test_a_sound_is_found_again_by_its_samples(
    vocabulary: Vocabulary, ears: dict[str, Path]
) -> None:
    with running(vocabulary) as engine:
        loaded(engine, ears["qwen2a"], settings=EngineSettings(unified=True))
        for key, played in enumerate([(LOW,), (LOW,), (HIGH,), (LOW, HIGH)], 1):
            hearing(engine, key, *played, max_tokens=4, logprobs=60)
            engine.until_ended(key)
        endings = [engine.endings[key] for key in range(1, 5)]
    assert [ending.num_audio_tokens for ending in endings] == [750, 750, 750, 1500]
    assert endings[0].num_cached_tokens == 0
    assert endings[1].num_cached_tokens == endings[0].num_prompt_tokens - 1
    assert endings[3].num_cached_tokens > endings[2].num_cached_tokens > 0
    assert difference(engine, 1, 2) < 0.1
    assert difference(engine, 1, 3) > 0.01


def test_an_image_and_a_sound_are_perceived_together(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    both = write_projector(tmp_path / "both.gguf", kind="gemma3", hears="ultravox")
    with running(vocabulary) as engine:
        ready = loaded(engine, both)
        assert ready.senses.sees_images
        assert ready.senses.sound_rate == RATE
        hearing(engine, 1, RED, LOW, max_tokens=3, sampling=GREEDY)
        engine.until_ended(1)
    assert engine.endings[1].reason in ("stop", "length")
    assert (engine.endings[1].num_image_tokens, engine.endings[1].num_audio_tokens) == (9, 375)


def test_what_cannot_be_heard_is_refused_and_the_engine_lives(
    vocabulary: Vocabulary, ears: dict[str, Path]
) -> None:
    with running(vocabulary) as engine:
        loaded(engine, ears["gemma4ua"], slots=16)
        hearing(engine, 1, Sound(b""))
        hearing(engine, 2, Sound(bytes(4)))
        hearing(engine, 3, sound(300, seconds=30))
        hearing(engine, 4, RED)
        hearing(engine, 5, *[LOW] * 30)
        hearing(engine, 6, Sound(bytes(4 * RATE)), max_tokens=1)
        engine.until_ended(*range(1, 7))
    reasons = [engine.endings[key].reason for key in range(1, 7)]
    assert reasons[:2] == ["image_failed"] * 2
    assert "1 samples, must have 2 at least" in engine.endings[2].detail
    assert reasons[2] == reasons[4] == "refused"
    assert "one slot of this agent holds 512 tokens" in engine.endings[3].detail
    assert reasons[3] == "image_failed"
    assert reasons[5] in ("stop", "length")


def test_a_sound_is_computed_in_parts_but_not_where_media_are_computed_whole(
    vocabulary: Vocabulary, ears: dict[str, Path], tmp_path: Path
) -> None:
    both = write_projector(tmp_path / "both.gguf", kind="gemma3", hears="ultravox")
    for projection, reasons in ((ears["ultravox"], {"stop", "length"}), (both, {"refused"})):
        with running(vocabulary) as engine:
            loaded(engine, projection, n_batch=100)
            hearing(engine, 1, LOW, max_tokens=2)
            engine.until_ended(1)
        assert engine.endings[1].reason in reasons
    assert "a sound takes 375 tokens, more than n_batch: 100" in engine.endings[1].detail


def test_an_ear_that_llama_cpp_would_abort_in_is_not_used(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    with running(vocabulary) as engine:
        ready = loaded(engine, write_ear(tmp_path / "groups_of_8.gguf", stack=8))
        assert ready.senses == Senses()
        assert "miscounts the tokens of its sounds" in ready.projection_problem
        hearing(engine, 1, LOW)
        engine.until_ended(1)
    assert engine.endings[1].reason == "cannot_see"
