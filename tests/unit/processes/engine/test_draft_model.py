"""A draft model that has a long prompt to catch up with: the bundled model guesses for itself."""

from __future__ import annotations

import attrs
import pytest

from paddler_trio import __version__
from paddler_trio.processes.engine.llama.draft_model import DraftModel
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.scheduler.batching.sequences import Sequence
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.engine_settings import EngineSettings

LOAD = LoadModel(str(BUNDLED_MODEL), 2, 4096, 512, 0, "F16", "F16", 1, __version__)
COUNT = 3
CATCH_UP = 64


@attrs.define(eq=False)
class Bench:
    drafts: DraftModel
    computed: list[int] = attrs.field(factory=list)
    """Tokens of each call of llama.cpp since it was cleared."""

    def guess(self, *sequences: Sequence, catch_up: int = CATCH_UP) -> int:
        """How many tokens the draft model computed for these guesses."""
        self.computed.clear()
        for sequence in sequences:
            sequence.drafts = []
        self.drafts.guess(list(sequences), count=COUNT, catch_up=catch_up)
        return sum(self.computed)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    llama = Llama.load(LOAD.model_path, n_gpu_layers=0, progress=lambda _: None)
    target = llama.open_context(
        slots=2,
        context_size=4096,
        n_batch=512,
        k_cache_dtype="F16",
        v_cache_dtype="F16",
        threads=1,
        settings=EngineSettings(),
    )
    bench = Bench(DraftModel.load(LOAD.model_path, LOAD, target, llama))
    drafting = bench.drafts.llama
    decode = drafting.decode

    def counted() -> int:
        bench.computed.append(drafting.batch.raw.n_tokens)
        return decode()

    monkeypatch.setattr(drafting, "decode", counted)
    return bench


def sequence(key: int, length: int) -> Sequence:
    placed = Sequence(key, [300 + place * (6 + key) % 900 for place in range(length)], length)
    placed.stream = key
    return placed


def test_a_long_prompt_is_caught_up_with_part_by_part_and_others_get_their_drafts(
    bench: Bench,
) -> None:
    short, long = sequence(0, 20), sequence(1, 1000)
    passes = 0
    while not long.drafts:
        passes += 1
        assert bench.guess(short, long) <= CATCH_UP + 2 * (COUNT + 1)
        assert len(short.drafts) == COUNT
        short.tokens += [short.drafts[0], 999]
        long.tokens.append(700)
    assert 1000 // CATCH_UP < passes < 1000 // CATCH_UP + 4
    guessed = list(long.drafts)
    alone = sequence(0, 0)
    alone.tokens = list(long.tokens[:-1])
    bench.guess(alone, catch_up=2000)
    assert alone.drafts == guessed


def test_short_prompts_are_caught_up_with_at_once_and_together(bench: Bench) -> None:
    one, two = sequence(0, 30), sequence(1, 33)
    bench.guess(one, two)
    assert len(bench.computed) == COUNT
    assert len(one.drafts) == len(two.drafts) == COUNT


def test_a_catch_up_that_llama_cpp_fails_begins_anew(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = sequence(1, 100)
    with monkeypatch.context() as patch:
        patch.setattr(bench.drafts.llama, "decode", lambda: 1)
        bench.guess(long)
    assert not long.drafts
    while not long.drafts:
        bench.guess(long)
    again = list(long.drafts)
    other = sequence(1, 100)
    other.stream = 0
    bench.guess(other, catch_up=100)
    assert other.drafts == again
