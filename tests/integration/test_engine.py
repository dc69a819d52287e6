"""The engine process by itself, over its pipe, with the bundled model."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from engine_client import DICE, GREEDY, LOAD, STORY, Engine, running

from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.engine.engine_pipe import (
    LoadFailed,
    Ready,
    StartSequence,
    StopSequence,
)
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.engine.sampler_stages import Sampling
from written_grammars import gbnf


@pytest.fixture
def engine(vocabulary: Vocabulary) -> Iterator[Engine]:
    with running(vocabulary) as engine:
        ready = engine.load()
        assert isinstance(ready, Ready)
        assert ready.memory is not None
        assert attrs.evolve(ready, memory=None) == Ready(512, 512, 2048, vocabulary.n_tokens)
        yield engine


def test_sequences_share_passes_and_end_for_their_own_reasons(engine: Engine) -> None:
    engine.start(1, "The capital of France is")
    engine.start(2, STORY, sampling=DICE, max_tokens=7)
    engine.start(3, "word " * 400, max_tokens=500)
    engine.start(
        4,
        STORY,
        max_tokens=3000,
        sampling=DICE,
        grammar=gbnf("root ::= [a-z]*"),
    )
    engine.until_ended(1, 2, 3, 4)
    assert engine.texts[1].startswith(b" Paris.")
    assert engine.endings[1].reason == "stop"
    assert engine.endings[2].reason == "length"
    assert len(engine.sampled[2]) == 7
    assert engine.endings[4].reason in ("cells", "stop")
    assert engine.endings[3].reason in ("cells", "stop")


@pytest.mark.parametrize("sampling", [GREEDY, DICE], ids=["greedy", "seeded"])
def test_a_continued_sequence_samples_what_the_first_one_sampled(
    engine: Engine, sampling: Sampling
) -> None:
    engine.start(1, STORY, sampling=sampling)
    engine.until_ended(1)
    whole = engine.sampled[1]
    assert len(whole) == 40
    for key, split in ((2, 1), (3, 17), (4, 39)):
        engine.start(key, STORY, sampling=sampling, sampled=whole[:split])
        engine.until_ended(key)
        assert engine.sampled[key] == whole[split:], f"split at {split}"
        assert engine.endings[key].reason == "length"


def test_a_continued_grammar_goes_on_where_it_stood(engine: Engine) -> None:
    grammar = gbnf('root ::= "alpha " ("beta " | "gamma ") "delta"')
    engine.start(1, STORY, sampling=DICE, grammar=grammar)
    engine.until_ended(1)
    whole = engine.sampled[1]
    assert engine.texts[1].removesuffix(b"<|im_end|>") in (
        b"alpha beta delta",
        b"alpha gamma delta",
    )
    engine.start(2, STORY, sampling=DICE, grammar=grammar, sampled=whole[:3])
    engine.until_ended(2)
    assert engine.sampled[2] == whole[3:]
    engine.start(3, STORY, sampling=DICE, grammar=grammar, sampled=[whole[-2], whole[0]])
    engine.until_ended(3)
    assert engine.endings[3].reason == "grammar_rejected"


def test_a_grammar_that_becomes_dear_ends_its_own_sequence(engine: Engine) -> None:
    many = " ".join(f"([0-{n % 10}]* [^a-zA-Z{n % 10}]?)" for n in range(800))
    ways = " | ".join(f'"Q" root "{n}"' for n in range(1000))
    [whole] = engine.vocabulary.tokenize("at", add_special=False, parse_special=False)
    engine.start(1, STORY, max_tokens=60)
    engine.start(2, STORY, grammar=gbnf(f"root ::= {many}"))
    engine.start(
        3,
        STORY,
        grammar=gbnf(f'root ::= {ways} | "Q"{{40}}'),
        max_tokens=9,
    )
    engine.start(4, STORY, grammar=gbnf(f'root ::= "a" <[{whole}]>'))
    engine.until_ended(1, 2, 3, 4)
    assert engine.endings[1].reason in ("stop", "length")
    assert engine.endings[2].reason in ("stop", "length")
    assert engine.endings[3].reason == "grammar_rejected"
    assert "took too long" in engine.endings[3].detail
    assert engine.texts[4].removesuffix(b"<|im_end|>") == b"aat"


def test_what_cannot_run_is_refused_with_the_numbers_and_harms_nobody(engine: Engine) -> None:
    engine.start(1, STORY, max_tokens=60)
    engine.start(2, "word " * 600)
    engine.start(3, "")
    engine.start(4, STORY, grammar=gbnf("root ::= <[88888888]>"))
    engine.start(5, STORY, grammar=gbnf('root ::= "x" <[99999999]>'))
    engine.send(StartSequence(6, [10**6], [], 5, GREEDY, None))
    engine.until_ended(1, 2, 3, 4, 5, 6)
    assert engine.endings[1].reason in ("stop", "length")
    assert engine.endings[2].reason == "refused"
    assert "601 tokens" in engine.endings[2].detail
    assert "512 tokens" in engine.endings[2].detail
    assert "empty" in engine.endings[3].detail
    assert [engine.endings[key].reason for key in (4, 5)] == ["grammar_invalid"] * 2
    assert "token 1000000 is outside" in engine.endings[6].detail


def test_a_stop_ends_a_running_and_a_waiting_sequence_and_no_other(vocabulary: Vocabulary) -> None:
    endless = attrs.evolve(DICE, ignore_eos=True)  # however late the stop is
    with running(vocabulary) as engine:
        assert isinstance(engine.load(attrs.evolve(LOAD, context_size=4 * 8192)), Ready)
        for key in range(1, 7):
            if key in (2, 6):
                engine.start(key, STORY, sampling=endless, max_tokens=0)
            else:
                engine.start(key, STORY, sampling=DICE, max_tokens=200)
        engine.send(StopSequence(6))
        engine.send(StopSequence(2))
        engine.send(StopSequence(99))
        engine.until_ended(1, 2, 3, 4, 5, 6)
    assert engine.endings[6].reason == "stopped"
    assert engine.endings[2].reason == "stopped"
    assert all(engine.endings[key].reason in ("stop", "length") for key in (1, 3, 4, 5))


def test_a_batch_larger_than_the_context_is_clamped_instead_of_aborting(
    vocabulary: Vocabulary,
) -> None:
    with running(vocabulary) as engine:
        ready = engine.load(attrs.evolve(LOAD, slots=1, context_size=256, n_batch=100_000))
        assert isinstance(ready, Ready)
        assert ready.n_batch == ready.cells == 256
        engine.start(1, "word " * 250, max_tokens=3)
        engine.until_ended(1)
        assert engine.endings[1].reason in ("length", "cells", "stop")


def test_what_is_no_model_is_said_before_the_engine_ends(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(BUNDLED_MODEL.read_bytes()[:100_000])
    for path in (broken, tmp_path / "missing.gguf"):
        with running(vocabulary) as engine:
            failed = engine.load(attrs.evolve(LOAD, model_path=str(path)))
            assert isinstance(failed, LoadFailed)
            assert failed.stage == "model"
            assert str(path) in failed.reason
            assert engine.process.wait(60) == 0


def test_the_engine_ends_when_its_pipe_does_whatever_it_is_doing(engine: Engine) -> None:
    engine.start(1, STORY, sampling=DICE, max_tokens=400)
    assert engine.process.stdin is not None
    engine.process.stdin.close()
    assert engine.process.wait(60) == 0


def test_a_garbled_frame_ends_the_engine_instead_of_confusing_it(engine: Engine) -> None:
    assert engine.process.stdin is not None
    engine.process.stdin.write(b"\x00\x00\x00\x03abc")
    engine.process.stdin.flush()
    assert engine.process.wait(60) == 1


def test_a_frozen_engine_can_be_killed(engine: Engine) -> None:
    engine.process.send_signal(signal.SIGSTOP)
    engine.process.kill()
    assert engine.process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("layout", [False, True])
def test_a_batch_smaller_than_the_slots_is_enlarged_and_a_context_refused(
    vocabulary: Vocabulary, layout: bool
) -> None:
    settings = EngineSettings(unified=layout)
    with running(vocabulary) as engine:
        ready = engine.load(attrs.evolve(LOAD, n_batch=2, settings=settings))
        assert isinstance(ready, Ready)
        assert ready.n_batch >= 4
        for key in range(1, 5):
            engine.start(key, "The capital of France is", max_tokens=5)
        engine.until_ended(1, 2, 3, 4)
    with running(vocabulary) as engine:
        failed = engine.load(attrs.evolve(LOAD, context_size=3, settings=settings))
        assert isinstance(failed, LoadFailed)
        assert "context_size is 3" in failed.reason
