"""The thread that encodes images: what it keeps, refuses and gives up; with the real projector."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import attrs
import numpy as np
import pytest

from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.llama.projector import NotEncodableError, Patch, Projector
from paddler_trio.processes.engine.llama.vision import Embeddings, Encoded, ImageCache, Rows, Vision
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.scheduler.batching.image_tokens import is_image
from paddler_trio.wire.engine.engine_pipe import Ending, StartSequence
from paddler_trio.wire.engine.media import MEDIA_TOKEN, Image, Senses
from samplings import GREEDY
from vision_models import picture, write_projector


@attrs.frozen
class Complete:
    """A sequence as it reaches the decode loop."""

    start: StartSequence
    embeddings: Embeddings


class CountingProjector:
    """The real one; counts encodings, and says when one begins."""

    def __init__(self, projector: Projector) -> None:
        self.lay_out = projector.lay_out
        self.encodings = 0
        self.on_encode: Callable[[], None] = lambda: None
        self._projector = projector

    def encode(self, patch: Patch) -> np.ndarray:
        self.encodings += 1
        self.on_encode()
        return self._projector.encode(patch)


@pytest.fixture(scope="module")
def projector(tmp_path_factory: pytest.TempPathFactory) -> Projector:
    path = write_projector(tmp_path_factory.mktemp("projection") / "tiny.gguf")
    llama = Llama.load(str(BUNDLED_MODEL), n_gpu_layers=0, progress=lambda _: None)
    return Projector.load(str(path), llama, threads=1, use_gpu=False)


@attrs.define
class Bench:
    """A vision without its thread: ``see`` is called by hand."""

    projector: CountingProjector
    results: SimpleQueue[Complete | Ending] = attrs.field(factory=SimpleQueue)
    vision: Vision[Complete] = attrs.field(init=False)
    discarded: list[Complete] = attrs.field(factory=list)

    def see(self, start: StartSequence) -> Complete | Ending | None:
        self.vision.take(start)
        self.vision.see(start)
        return None if self.results.empty() else self.results.get_nowait()


@pytest.fixture
def bench(projector: Projector) -> Bench:
    return bench_of(projector, budget_bytes=10**6)


def bench_of(projector: Projector, *, budget_bytes: int) -> Bench:
    bench = Bench(CountingProjector(projector))
    discarded = bench.discarded
    bench.vision = Vision(
        bench.projector,  # type: ignore[arg-type]  # all of it that is used
        cells=200,
        n_batch=64,
        cache=ImageCache(budget_bytes),
        admit=Complete,
        forward=bench.results.put,
        discard=discarded.append,
    )
    return bench


def image(red: int) -> Image:
    return Image(32, 32, picture((red, 50, 90)).tobytes())


def asking(key: int, *reds: int) -> StartSequence:
    tokens = [5] + [MEDIA_TOKEN, 6] * len(reds)
    return StartSequence(key, tokens, [], 8, GREEDY, None, media=[image(red) for red in reds])


def test_an_image_becomes_tokens_that_have_embeddings(bench: Bench) -> None:
    found = bench.see(asking(1, 10, 200))
    assert isinstance(found, Complete)
    tokens = found.start.tokens
    assert not found.start.media
    assert len(tokens) == 3 + 2 * 36
    assert (tokens[0], tokens[37], tokens[-1]) == (5, 6, 6)
    assert sum(map(is_image, tokens)) == 72
    assert [rows.embeddings.shape for rows in found.embeddings.values()] == [(36, 256)] * 2


def test_who_cannot_hear_silence_is_deaf_and_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    llama = Llama.load(str(BUNDLED_MODEL), n_gpu_layers=0, progress=lambda _: None)
    path = write_projector(tmp_path / "both.gguf", hears="gemma4ua")
    projector = Projector.load(str(path), llama, threads=1, use_gpu=False)
    assert projector.senses(50) == Senses(True, 16_000, sound_s=2)

    def fail(_: object) -> NoReturn:
        raise NotEncodableError("code 2")

    monkeypatch.setattr(projector, "lay_out", fail)
    assert projector.senses(50) == Senses(sees_images=True)
    assert "3\tthe model does not hear: code 2\n" in capfd.readouterr().err


def test_what_was_seen_before_is_not_encoded_again(bench: Bench) -> None:
    first = bench.see(asking(1, 10, 200))
    second = bench.see(asking(2, 200, 10, 10))
    assert bench.projector.encodings == 2
    assert isinstance(first, Complete)
    assert isinstance(second, Complete)
    assert first.embeddings.keys() == second.embeddings.keys()


def test_what_was_made_for_a_client_that_left_meanwhile_is_discarded(bench: Bench) -> None:
    """It holds memory of llama.cpp's, which nobody else releases."""

    def leaves(start: StartSequence, embeddings: Embeddings) -> Complete:
        bench.vision.stop(start.key)
        return Complete(start, embeddings)

    bench.vision.admit = leaves
    ending = bench.see(asking(1, 10))
    assert isinstance(ending, Ending)
    assert ending.reason == "stopped"
    assert [made.start.key for made in bench.discarded] == [1]


def test_what_was_seen_is_let_go_before_the_next_one_comes(bench: Bench) -> None:
    """The pixels of one request may be 100 MB."""
    is_gone, crashed = threading.Event(), threading.Event()
    bench.vision.start(crashed.set)
    start = asking(1, 10)
    weakref.finalize(start, is_gone.set)
    bench.vision.take(start)
    del start
    assert isinstance(bench.results.get(timeout=10), Complete)
    assert is_gone.wait(10)
    assert not crashed.is_set()


def test_without_room_nothing_is_kept(projector: Projector) -> None:
    bench = bench_of(projector, budget_bytes=1000)
    for key in (1, 2):
        assert isinstance(bench.see(asking(key, 10)), Complete)
    assert bench.projector.encodings == 2
    assert bench.vision.cache.num_bytes == 0


def test_what_cannot_fit_is_refused_before_it_is_encoded(bench: Bench) -> None:
    refused = bench.see(asking(1, 1, 2, 3, 4, 5, 6))
    assert isinstance(refused, Ending)
    assert refused.reason == "refused"
    assert "holds 200 tokens" in refused.detail
    assert bench.projector.encodings == 5


def test_who_stops_is_told_at_once_and_encodes_no_more(bench: Bench) -> None:
    """The encoding that is under way when it stops is kept for others."""
    bench.projector.on_encode = lambda: bench.vision.stop(1)
    ended = bench.see(asking(1, 10, 20))
    assert ended == Ending(1, "stopped", 0, 0)
    assert bench.results.empty()
    assert bench.projector.encodings == 1
    bench.projector.on_encode = lambda: None
    bench.see(asking(2, 10))
    assert bench.projector.encodings == 1
    bench.vision.stop(2)  # it is the decode loop's by now
    assert bench.results.empty()


def test_the_cache_forgets_what_was_not_used_for_longest() -> None:
    cache = ImageCache(100)
    images = {name: Encoded([], {1: Rows(np.zeros(10, np.float32))}) for name in "abc"}
    cache.keep(b"a", images["a"])
    cache.keep(b"b", images["b"])
    assert cache.find(b"a") is images["a"]
    cache.keep(b"c", images["c"])
    assert cache.find(b"b") is None
    assert cache.find(b"a") is images["a"]
    assert cache.num_bytes == 80
