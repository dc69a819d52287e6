"""Images in the engine: encoded beside the decode loop, computed as chunks, found again."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import attrs
import llama_cpp.llama_cpp as lib
import llama_cpp.mtmd_cpp as mtmd
import numpy as np
import pytest
from engine_client import GREEDY, LOAD, STORY, Engine, running

from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.engine.engine_pipe import Ready, StopSequence
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.engine.media import MEDIA_TOKEN, Image, Medium
from vision_models import Kind, picture, write_planar_model, write_projector

KINDS: tuple[Kind, ...] = ("janus_pro", "gemma3", "qwen2vl")
LAYOUTS = ["split", "unified"]
BEFORE = "<|im_start|>user\nLook: "
AFTER = "\nWhat is this?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def projectors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("projectors")
    write_planar_model(planar_model(folder / "any"), BUNDLED_MODEL)
    return {kind: write_projector(folder / f"{kind}.gguf", kind=kind) for kind in KINDS}


def planar_model(projection: Path) -> Path:
    """It lies beside the projections."""
    return projection.parent / "planar_model.gguf"


def model_of(projection: Path) -> Path:
    """The one whose images the projection encodes."""
    return planar_model(projection) if projection.stem == "qwen2vl" else BUNDLED_MODEL


def image(red: int, green: int, blue: int) -> Image:
    pixels = picture((red, green, blue), width=64, height=32)
    return Image(64, 32, pixels.tobytes())


RED, GREEN = image(250, 20, 10), image(10, 240, 30)


def loaded(engine: Engine, projection: Path, **more: object) -> Ready:
    model = str(model_of(projection))
    load = attrs.evolve(LOAD, model_path=model, projection_path=str(projection), **more)
    ready = engine.load(load)
    assert isinstance(ready, Ready), ready
    return ready


def seeing(engine: Engine, key: int, *images: Image, before: str = BEFORE, **more: object) -> None:
    """A question about images, which stand one after the other."""
    tokens = engine.tokens(before) + [MEDIA_TOKEN] * len(images) + engine.tokens(AFTER)
    engine.start(key, tokens, media=list(images), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_model_sees_what_llama_cpp_would_show_it(
    vocabulary: Vocabulary, projectors: dict[str, Path], kind: str, layout: str
) -> None:
    """In small chunks here, at once there: the next token is as likely in both."""
    expected = reference_logprobs(projectors[kind], RED)
    with running(vocabulary) as engine:
        ready = loaded(
            engine,
            projectors[kind],
            settings=EngineSettings(unified=layout == "unified"),
            n_batch=40,
        )
        assert ready.senses.sees_images
        assert not ready.projection_problem
        engine.start(7, STORY, max_tokens=400)  # somebody generates, so the image is paced
        seeing(engine, 1, RED, max_tokens=1, logprobs=5)
        engine.until_ended(1, 7)
        (report,) = engine.reports[1]
    assert report.logprobs is not None
    assert len(report.logprobs.tokens) == 6
    for token, logprob in zip(report.logprobs.tokens, report.logprobs.values, strict=True):
        assert math.isclose(logprob, expected[token], abs_tol=0.15), token
    assert engine.endings[1].num_image_tokens == {"janus_pro": 36, "gemma3": 9, "qwen2vl": 32}[kind]
    assert engine.endings[7].reason != "failed"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_image_is_found_again_by_what_it_shows(
    vocabulary: Vocabulary, projectors: dict[str, Path], kind: str, layout: str
) -> None:
    with running(vocabulary) as engine:
        loaded(engine, projectors[kind], settings=EngineSettings(unified=layout == "unified"))
        for key, shown in enumerate([(RED,), (RED,), (GREEN,), (RED, GREEN), (RED, RED)], 1):
            seeing(engine, key, *shown, max_tokens=8, logprobs=60)
            engine.until_ended(key)
        engine.receive_figures()
        endings = [engine.endings[key] for key in range(1, 6)]
    words, before = endings[0].num_prompt_tokens, len(engine.tokens(BEFORE))
    size = endings[0].num_image_tokens
    assert {ending.reason for ending in endings} <= {"stop", "length"}
    assert [ending.num_image_tokens for ending in endings] == [size, size, size, 2 * size, 2 * size]
    # words only: an image is in no total of the usage
    assert endings[0].num_cached_tokens == 0
    assert endings[1].num_cached_tokens == words - 1
    # the tokens that a model wants before an image
    around = {"janus_pro": 0, "gemma3": 9, "qwen2vl": words_before(vocabulary)}[kind]
    for ending in endings[2:]:
        assert ending.num_cached_tokens >= before + around
    assert engine.stats is not None
    cached = engine.stats.cached_tokens
    assert cached >= (words - 1 + size) + (before + around) + 2 * (before + around + size)
    assert difference(engine, 1, 2) < 0.1
    assert difference(engine, 1, 3) > 0.2


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_about_an_image_goes_on_elsewhere(
    vocabulary: Vocabulary, projectors: dict[str, Path], kind: str
) -> None:
    with running(vocabulary) as engine:
        loaded(engine, projectors[kind])
        endless = attrs.evolve(GREEDY, ignore_eos=True)
        seeing(engine, 1, RED, GREEN, max_tokens=6, logprobs=60, sampling=endless)
        engine.until_ended(1)
    with running(vocabulary) as other:
        loaded(other, projectors[kind])
        sampled = engine.sampled[1][:3]
        seeing(other, 2, RED, GREEN, max_tokens=6, logprobs=60, sampling=endless, sampled=sampled)
        other.until_ended(2)
    other.reports[1] = engine.reports[1]
    assert other.endings[2].reason == "length"
    assert len(other.sampled[2]) == 3
    assert difference(other, 1, 2, later=3) < 0.1


def test_what_cannot_be_shown_is_refused_with_the_numbers(
    vocabulary: Vocabulary, projectors: dict[str, Path]
) -> None:
    with running(vocabulary) as engine:
        loaded(engine, projectors["janus_pro"], n_batch=32, context_size=512, slots=2)
        seeing(engine, 1, RED)
        engine.start(2, [*engine.tokens(BEFORE), MEDIA_TOKEN], media=[])
        engine.start(3, [*engine.tokens(BEFORE)], media=[RED])
        engine.until_ended(1, 2, 3)
    assert engine.endings[1].reason == "image_too_large"
    assert (engine.endings[1].num_image_tokens, engine.endings[1].n_batch) == (36, 32)
    assert "36 tokens, more than n_batch: 32" in engine.endings[1].detail
    assert engine.endings[2].reason == "refused"
    assert engine.endings[3].reason == "refused"
    assert "1 media for 0 places" in engine.endings[3].detail


def test_images_that_do_not_fit_a_slot_are_refused_before_they_are_encoded(
    vocabulary: Vocabulary, projectors: dict[str, Path]
) -> None:
    with running(vocabulary) as engine:
        loaded(engine, projectors["janus_pro"], context_size=512, slots=2)
        seeing(engine, 1, *(image(n, n, n) for n in range(1, 10)))
        engine.until_ended(1)
    assert engine.endings[1].reason == "refused"
    assert "one slot of this agent holds 256 tokens" in engine.endings[1].detail


def test_a_model_without_projection_says_so(vocabulary: Vocabulary) -> None:
    with running(vocabulary) as engine:
        ready = engine.load()
        assert isinstance(ready, Ready)
        assert not ready.senses.sees_images
        seeing(engine, 1, RED)
        engine.until_ended(1)
    assert engine.endings[1].reason == "cannot_see"


def test_a_projection_of_another_model_is_refused_and_the_model_serves_words(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    other = write_projector(tmp_path / "other.gguf", model_width=128)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(other.read_bytes()[:3000])
    for path, reason in {
        other: "mismatch",
        broken: str(broken),
        BUNDLED_MODEL: "no projection for this model",
        tmp_path / "nothing.gguf": "there is no projection file",
    }.items():
        with running(vocabulary) as engine:
            ready = loaded(engine, Path(path))
            assert not ready.senses.sees_images
            assert reason in ready.projection_problem
            engine.start(1, STORY, max_tokens=3)
            engine.until_ended(1)
            assert engine.endings[1].reason == "length"


def test_those_who_generate_go_on_while_an_image_is_encoded_and_stopping_is_at_once(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    slow = write_projector(tmp_path / "slow.gguf", side=192, layers=12)
    with running(vocabulary) as engine:
        loaded(engine, slow, n_batch=2304, context_size=8192, slots=2)
        engine.start(1, STORY, max_tokens=1)
        engine.until_ended(1)
        seeing(engine, 3, image(8, 8, 8), max_tokens=1)
        engine.start(4, STORY, max_tokens=30)
        engine.until_ended(4)
        assert 3 not in engine.endings, "the image was encoded before others went on"
        engine.send(StopSequence(3))
        engine.start(5, STORY, max_tokens=1)
        engine.until_ended(5)
        assert 3 in engine.endings, "it was stopped after the image was encoded"
        assert engine.endings[3].reason == "stopped"


def test_many_with_images_in_a_full_pool_all_come_to_their_end(
    vocabulary: Vocabulary, projectors: dict[str, Path]
) -> None:
    """Cells run out, sequences are set aside in the middle of images, and nobody is harmed."""
    for kind in KINDS:
        ends: dict[int, list[str]] = {}
        for cells in (4096, 512):
            with running(vocabulary) as engine:
                loaded(
                    engine,
                    projectors[kind],
                    context_size=cells,
                    slots=4,
                    n_batch=64,
                    settings=EngineSettings(unified=True),
                )
                for key in range(1, 9):
                    shown = [image(20 * key, 7, 200 - 20 * key), RED]
                    seeing(engine, key, *shown, max_tokens=100, sampling=GREEDY)
                engine.until_ended(*range(1, 9))
            ends[cells] = [engine.endings[key].reason for key in range(1, 9)]
        assert set(ends[4096]) <= {"stop", "length"}
        assert set(ends[512]) <= {"stop", "length"}


def difference(engine: Engine, one: int, other: int, *, later: int = 0) -> float:
    """How far the likely first tokens of two answers are apart; of ``one``, so many later."""
    first, second = (
        dict(zip(shown.tokens, shown.values, strict=True))
        for key, place in ((one, later), (other, 0))
        if (shown := engine.reports[key][place].logprobs) is not None
    )
    if first.keys().isdisjoint(second):
        return math.inf
    return max(abs(first[token] - second[token]) for token in first.keys() & second.keys())


def words_before(vocabulary: Vocabulary) -> int:
    """Qwen2-VL's, in a vocabulary that has no token for them."""
    opener = "<|vision_start|>"
    return len(vocabulary.tokenize(opener, add_special=False, parse_special=True))


def reference_logprobs(projection: Path, shown: Medium) -> np.ndarray:
    """What libmtmd's own helper computes for the same prompt: float32 of shape (n_vocab,)."""
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(
        str(model_of(projection)).encode(), lib.llama_model_default_params()
    )
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_threads = 2048, 512, 1
    context = lib.llama_init_from_model(model, params)
    vision_params = mtmd.mtmd_context_params_default()
    vision_params.use_gpu, vision_params.n_threads = False, 1
    vision = mtmd.mtmd_init_from_file(str(projection).encode(), model, vision_params)
    text = BEFORE.encode() + mtmd.mtmd_default_marker() + AFTER.encode()
    if isinstance(shown, Image):
        pixels = np.frombuffer(shown.pixels, np.uint8)
        bitmap = mtmd.mtmd_bitmap_init(
            shown.width, shown.height, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        )
    else:
        samples = np.frombuffer(shown.samples, np.float32)
        bitmap = mtmd.mtmd_bitmap_init_from_audio(
            len(samples), samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        )
    chunks = mtmd.mtmd_input_chunks_init()
    try:
        given = mtmd.mtmd_input_text(
            text=text, text_len=len(text), add_special=True, parse_special=True
        )
        bitmaps = (ctypes.c_void_p * 1)(bitmap)
        assert mtmd.mtmd_tokenize(vision, chunks, ctypes.byref(given), bitmaps, 1) == 0
        past = ctypes.c_int32(0)
        code = mtmd.mtmd_helper_eval_chunks(
            vision, context, chunks, 0, 0, 512, True, ctypes.byref(past)
        )
        assert code == 0
        vocab = lib.llama_model_get_vocab(model)
        logits = np.ctypeslib.as_array(
            lib.llama_get_logits_ith(context, -1), (lib.llama_vocab_n_tokens(vocab),)
        ).astype(np.float64)
    finally:
        mtmd.mtmd_input_chunks_free(chunks)
        mtmd.mtmd_bitmap_free(bitmap)
        mtmd.mtmd_free(vision)
        lib.llama_free(context)
        lib.llama_model_free(model)
    shifted = logits - logits.max()
    return shifted - math.log(np.exp(shifted).sum())
