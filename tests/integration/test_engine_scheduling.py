"""What the engine reuses, budgets, preempts, drafts and aborts, with the bundled model."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest
from engine_client import DICE, GREEDY, LOAD, STORY, Engine, running

from distinct_models import write_model
from memory_models import write_sliding
from paddler_trio.agent.children.thread_waiting import PATIENT_WAITING
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.system.machine import granted_cores
from paddler_trio.wire.engine.engine_pipe import (
    LoadFailed,
    ReasoningBudget,
    StopSequence,
)
from paddler_trio.wire.engine.engine_settings import EngineSettings
from written_grammars import gbnf

SYSTEM = "<|im_start|>system\n" + "You are a patient teacher who answers in short sentences. " * 12
LAYOUTS = ["split", "unified"]


def settings(layout: str = "split", **more: object) -> EngineSettings:
    return EngineSettings(unified=layout == "unified", **more)  # type: ignore[arg-type]


@pytest.fixture(params=LAYOUTS)
def engine(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> Iterator[Engine]:
    with running(vocabulary) as engine:
        engine.load(attrs.evolve(LOAD, settings=settings(request.param)))
        yield engine


@pytest.fixture
def plain(vocabulary: Vocabulary) -> Iterator[Engine]:
    with running(vocabulary) as engine:
        engine.load(LOAD)
        yield engine


def question(text: str) -> str:
    return f"{SYSTEM}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


# ------------------------------------------------------------------------------------ residency


def test_the_next_turn_of_a_conversation_computes_only_what_is_new(engine: Engine) -> None:
    first = engine.tokens(question("Who are you?"))
    engine.start(1, first, max_tokens=12)
    engine.until_ended(1)
    second = [*first, *engine.sampled[1], *engine.tokens("<|im_end|>\n<|im_start|>user\nAnd now?")]
    engine.start(2, second, max_tokens=5)
    engine.until_ended(2)
    assert engine.endings[1].num_cached_tokens == 0
    # the token drawn last was never computed
    assert engine.endings[2].num_cached_tokens == len(first) + len(engine.sampled[1]) - 1


def test_those_who_begin_alike_compute_the_beginning_once(engine: Engine) -> None:
    for key in range(1, 5):
        engine.start(key, question(f"Question number {key}?"), max_tokens=8)
    engine.until_ended(1, 2, 3, 4)
    shared = len(engine.tokens(SYSTEM))
    cached = [engine.endings[key].num_cached_tokens for key in range(1, 5)]
    assert cached[0] == 0
    assert all(tokens >= shared - 1 for tokens in cached[1:]), cached


def test_a_salt_and_disabled_reuse_keep_prefixes_apart(engine: Engine) -> None:
    prompt = question("The same question?")
    for key, more in enumerate(
        [{}, {"salt": "a"}, {"salt": "a"}, {"reuse_prefix": False}, {"salt": "b"}, {}], start=1
    ):
        engine.start(key, prompt, max_tokens=3, **more)
        engine.until_ended(key)
    full = len(engine.tokens(prompt)) - 1
    cached = [engine.endings[key].num_cached_tokens for key in range(1, 7)]
    assert cached == [0, 0, full, 0, 0, full]


def test_what_leaves_the_cache_comes_back_from_host_memory(vocabulary: Vocabulary) -> None:
    with running(vocabulary) as engine:
        engine.load(
            attrs.evolve(LOAD, slots=1, settings=settings(prefix_store_bytes=64 * 1024 * 1024))
        )
        prompts = [question(f"{character * 60}?") for character in "ab"]
        others = ["".join(f"word{n} other{n * key} " for n in range(60)) for key in (3, 4)]
        texts = {}
        for key, prompt in enumerate([prompts[0], *others, prompts[0]], start=1):
            engine.start(key, prompt, max_tokens=10)
            engine.until_ended(key)
            texts[key] = engine.texts[key]
        assert texts[1] == texts[4]
        assert engine.endings[4].num_cached_tokens == len(engine.tokens(prompts[0])) - 1
        while engine.stats is None or engine.stats.restores == 0:
            engine.receive_figures()
        assert engine.stats.stored_tokens > 0
        assert engine.stats.restores == 1
        assert engine.stats.restored_tokens == engine.endings[4].num_cached_tokens


@pytest.mark.parametrize("layout", LAYOUTS)
def test_greedy_text_is_the_same_whatever_is_reused(vocabulary: Vocabulary, layout: str) -> None:
    """Random mixes of conversations, with and without reuse; noise of the batch's shape may flip
    a tie, so a text may differ where two runs without any reuse differ as well."""
    dice = random.Random(5)
    prompts = []
    for _ in range(14):
        text = question(f"Tell me about number {dice.randrange(3)}.")
        if dice.random() < 0.5:
            text += "Here it is.<|im_end|>\n<|im_start|>user\nGo on." + "!" * dice.randrange(4)
        prompts.append(text)

    def answers(*, reuse: bool, together: int) -> dict[int, bytes]:
        with running(vocabulary) as engine:
            engine.load(attrs.evolve(LOAD, settings=settings(layout)))
            for start in range(0, len(prompts), together):
                keys = range(start, min(start + together, len(prompts)))
                for key in keys:
                    engine.start(key, prompts[key], max_tokens=16, reuse_prefix=reuse)
                engine.until_ended(*keys)
            cached = sum(ending.num_cached_tokens for ending in engine.endings.values())
            assert (cached > 0) == reuse
            return engine.texts

    alone = answers(reuse=False, together=1)
    noise = sum(alone[key] != text for key, text in answers(reuse=False, together=4).items())
    for together in (1, 4):
        reused = answers(reuse=True, together=together)
        differing = [key for key in alone if alone[key] != reused[key]]
        assert len(differing) <= noise + 1, (differing, noise)


# -------------------------------------------------------------------------------- stream interval


def test_short_passes_are_delivered_together_and_a_first_token_at_once(
    vocabulary: Vocabulary,
) -> None:
    sampled: list[list[int]] = []
    for interval_ms in (0, 1000):
        with running(vocabulary) as engine:
            engine.load(attrs.evolve(LOAD, settings=settings(stream_interval_ms=interval_ms)))
            engine.start(1, STORY, max_tokens=33)
            engine.until_ended(1)
            sampled.append(engine.sampled[1])
            deliveries = engine.deliveries
    assert sampled[0] == sampled[1]
    assert deliveries[0] == 1
    assert len(deliveries) <= 33 // 4


# ------------------------------------------------------------------- latency, pressure, faults


def test_a_full_pool_preempts_the_youngest_and_fails_no_request(vocabulary: Vocabulary) -> None:
    with running(vocabulary) as engine:
        engine.load(attrs.evolve(LOAD, context_size=512, settings=settings("unified")))
        banned = {token: float("-inf") for token in (1529, 1531)}
        sampling = attrs.evolve(GREEDY, logit_bias=banned)
        for key in range(1, 5):
            prompt = f"{key} one two three " * 12
            engine.start(key, prompt, max_tokens=200, sampling=sampling, reuse_prefix=key % 2 == 0)
        engine.until_ended(1, 2, 3, 4)
        assert {engine.endings[key].reason for key in range(1, 5)} == {"length"}
        assert all(len(engine.sampled[key]) == 200 for key in range(1, 5))
        counts = [engine.endings[key].num_preemptions for key in range(1, 5)]
        assert counts[0] == 0, "the oldest is never preempted"
        assert sum(counts) > 0
        assert [engine.preempted.count(key) for key in range(1, 5)] == counts, "as it happens"
        while engine.stats is None or engine.stats.preemptions < sum(counts):
            engine.receive_figures()
        assert engine.stats.preemptions == sum(counts)
        assert engine.stats.cells_total == 512


def test_a_sequence_that_fills_the_pool_alone_ends_there(vocabulary: Vocabulary) -> None:
    with running(vocabulary) as engine:
        engine.load(attrs.evolve(LOAD, context_size=256, settings=settings("unified")))
        sampling = attrs.evolve(GREEDY, ignore_eos=True)
        engine.start(1, "a b c", max_tokens=0, sampling=sampling)
        engine.until_ended(1)
        assert engine.endings[1].reason == "cells"
        assert len(engine.sampled[1]) + len(engine.tokens("a b c")) == 257


def test_a_long_prompt_that_is_not_wanted_any_more_is_aborted(vocabulary: Vocabulary) -> None:
    with running(vocabulary) as engine:
        engine.load(attrs.evolve(LOAD, slots=1, context_size=4096, n_batch=4096))
        tokens = [token % 1500 for token in range(3500)]
        started_s = time.perf_counter()
        engine.start(1, tokens, max_tokens=1)
        engine.until_ended(1)
        whole_s = time.perf_counter() - started_s
        engine.start(2, [7, *tokens], max_tokens=1)
        engine.start(3, "The capital of France is", max_tokens=8)
        started_s = time.perf_counter()
        while time.perf_counter() < started_s + whole_s / 10:
            pass  # let the pass begin
        engine.send(StopSequence(2))
        engine.until_ended(2, 3)
        assert engine.endings[2].reason == "stopped"
        while engine.stats is None or engine.stats.drawn_tokens < 2:
            engine.receive_figures()
        computed = engine.stats.prompt_tokens
        assert computed < 2 * len(tokens), "the pass was computed to its end"
        assert engine.texts[3].startswith(b" Paris")


def test_a_long_prompt_is_told_how_far_it_is(vocabulary: Vocabulary) -> None:
    with running(vocabulary) as engine:
        engine.load(attrs.evolve(LOAD, slots=1, context_size=4096, n_batch=64))
        tokens = [token % 1500 for token in range(3000)]
        engine.start(1, tokens, max_tokens=1)
        engine.start(2, "short", max_tokens=1)
        engine.until_ended(1, 2)
        short, *_ = [progress for progress in engine.progress if progress.key == 2]
        assert short.computed == short.total == len(engine.tokens("short"))
        told = [progress for progress in engine.progress if progress.key == 1]
        computed = [progress.computed for progress in told]
        assert computed == sorted(set(computed))
        assert len(computed) > 1
        assert computed[-1] == 3000
        assert all(0 < progress.computed <= progress.total == 3000 for progress in told)


# ------------------------------------------------------------------------------------- drawing


def test_guessed_tokens_change_nothing_but_the_number_of_passes(vocabulary: Vocabulary) -> None:
    prompt = "one two three four five six seven eight nine ten. " * 6
    texts, passes = [], []
    for drafts in (0, 6):
        with running(vocabulary) as engine:
            engine.load(attrs.evolve(LOAD, settings=settings(max_drafts=drafts)))
            engine.start(1, prompt, max_tokens=80)
            engine.until_ended(1)
            texts.append(engine.texts[1])
            while engine.stats is None or engine.stats.drawn_tokens < len(engine.sampled[1]):
                engine.receive_figures()
            passes.append(engine.stats.passes)
            ending = engine.endings[1]
            assert (ending.num_accepted > 0) == (drafts > 0)
            assert ending.num_accepted <= ending.num_drafted
    assert texts[0] == texts[1]
    assert passes[1] < passes[0]


def test_a_draft_model_guesses_for_several_sequences_and_changes_nothing(
    vocabulary: Vocabulary,
) -> None:
    prompts = {1: STORY, 2: "The capital of France is", 3: question("Who are you?")}
    texts = []
    for draft_model in (None, LOAD.model_path):
        with running(vocabulary) as engine:
            more = {"draft_model": draft_model, "max_drafts": 3} if draft_model else {}
            engine.load(attrs.evolve(LOAD, settings=settings(**more)))
            for key, prompt in prompts.items():
                engine.start(key, prompt, max_tokens=40)
            engine.until_ended(*prompts)
            texts.append(engine.texts)
            if draft_model:
                drafted = sum(ending.num_drafted for ending in engine.endings.values())
                accepted = sum(ending.num_accepted for ending in engine.endings.values())
                assert accepted > 0.8 * drafted > 0, "it guesses what it would write itself"
    assert texts[0] == texts[1]


def test_a_draft_model_of_another_vocabulary_is_refused(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    other = write_sliding(tmp_path / "other.gguf")
    with running(vocabulary) as engine:
        failed = engine.load(attrs.evolve(LOAD, settings=settings(draft_model=str(other))))
        assert isinstance(failed, LoadFailed)
        assert f"{other} (--draft-model) has 64 tokens" in failed.reason


def test_a_draft_model_of_a_vocabulary_of_the_same_size_is_refused(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    other = write_model(tmp_path / "blanks.gguf", "\t")
    with running(vocabulary) as engine:
        failed = engine.load(attrs.evolve(LOAD, settings=settings(draft_model=str(other))))
        assert isinstance(failed, LoadFailed)
        assert f"{other} (--draft-model) has other tokens than the model" in failed.reason


CHANGES = {
    "dynatemp_range": 0.8,
    "typical_p": 0.3,
    "top_n_sigma": 0.5,
    "xtc_probability": 1.0,
    "mirostat": 2,
    "penalty_repeat": 1.6,
    "penalty_frequency": 1.5,
    "penalty_presence": 1.5,
    "min_p": 0.5,
    "top_p": 0.2,
    "top_k": 2,
    "temperature": 1.8,
    "logit_bias": {11: 8.0},
}
FREE = attrs.evolve(GREEDY, temperature=1.1, top_k=0, penalty_last_n=-1, seed=3)


def test_every_sampling_field_changes_what_is_sampled(plain: Engine) -> None:
    base = attrs.evolve(FREE, xtc_threshold=0.02)
    changed = {name: attrs.evolve(base, **{name: value}) for name, value in CHANGES.items()}
    narrow = attrs.evolve(base, top_k=2)
    samplings = [base, *changed.values(), narrow, attrs.evolve(narrow, samplers=["temperature"])]
    for key, sampling in enumerate(samplings):
        plain.start(key, STORY + "Once upon a time", sampling=sampling, max_tokens=60)
    plain.until_ended(*range(len(samplings)))
    sampled = [plain.sampled[key] for key in range(len(samplings))]
    same = [
        name for name, tokens in zip(changed, sampled[1:], strict=False) if tokens == sampled[0]
    ]
    assert not same, same
    assert sampled[-1] != sampled[-2], "without its stage top-k does nothing"


@pytest.mark.parametrize("name", ["dry_multiplier", "penalty_frequency", "penalty_repeat"])
def test_penalties_see_the_prompt_if_they_should(plain: Engine, name: str) -> None:
    prompt = "one two three four five. " * 5 + "one two"
    seeing = attrs.evolve(GREEDY, penalty_last_n=-1, penalize_prompt=True, **{name: 3.0})
    blind = attrs.evolve(seeing, penalize_prompt=False)
    for key, sampling in enumerate([GREEDY, seeing, blind]):
        plain.start(key, prompt, sampling=sampling, max_tokens=1)
    plain.until_ended(0, 1, 2)
    assert plain.sampled[1] != plain.sampled[0]
    assert (plain.sampled[2] == plain.sampled[0]) == (name != "dry_multiplier")


def test_the_same_seed_samples_the_same_and_another_does_not(plain: Engine) -> None:
    xtc = attrs.evolve(FREE, xtc_probability=0.5, xtc_threshold=0.05)
    for key, sampling in enumerate([FREE, FREE, attrs.evolve(FREE, seed=4), xtc, xtc]):
        plain.start(key, STORY, sampling=sampling, max_tokens=30)
    plain.until_ended(*range(5))
    assert plain.sampled[0] == plain.sampled[1] != plain.sampled[2]
    assert plain.sampled[3] == plain.sampled[4]


def test_logprobs_are_those_of_the_model(plain: Engine) -> None:
    plain.start(1, "The capital of France is", max_tokens=2, logprobs=4)
    plain.start(2, "The capital of France is", max_tokens=2, logprobs=0)
    plain.start(3, "The capital of France is", max_tokens=2)
    plain.until_ended(1, 2, 3)
    told = plain.reports[1][0].logprobs
    assert told is not None
    assert told.tokens[0] == told.tokens[1] == plain.sampled[1][0], "greedy draws the most likely"
    assert told.texts[0] == plain.reports[1][0].text
    assert told.values[1:] == sorted(told.values[1:], reverse=True)
    assert all(value <= 0 for value in told.values)
    assert len(told.tokens) == len(told.texts) == len(told.values) == 5
    alone = [report.logprobs for report in plain.reports[2]]
    assert [each and len(each.values) for each in alone] == [1, 1]
    assert alone[0] is not None
    assert alone[0].values[0] == pytest.approx(told.values[0], abs=0.05)
    assert plain.reports[3][0].logprobs is None


def test_a_sleeping_grammar_wakes_at_its_trigger(plain: Engine) -> None:
    grammar = gbnf('root ::= "{" [0-9]{3} "}"', trigger_patterns=["</think>\\s*"])
    plain.start(1, STORY.replace("\n\n</think>\n\n", ""), grammar=grammar, max_tokens=200)
    plain.start(
        2,
        STORY,
        grammar=gbnf('root ::= " a"', trigger_patterns=["never said"]),
        max_tokens=9,
    )
    plain.until_ended(1, 2)
    _, closed, answer = plain.texts[1].partition(b"</think>")
    assert closed, plain.texts[1]
    body = answer.strip().removesuffix(b"<|im_end|>")
    assert body[:1] == b"{"
    assert body[1:4].isdigit()
    assert body[4:] == b"}"
    assert plain.endings[2].reason in ("length", "stop")


def test_a_reasoning_budget_closes_the_reasoning(plain: Engine) -> None:
    opening = STORY.replace("\n\n</think>\n\n", "")
    close = plain.tokens("\n</think>\n\n")
    close = close[
        -len(plain.vocabulary.tokenize("\n</think>\n\n", add_special=False, parse_special=True)) :
    ]
    budget = ReasoningBudget(5, [], close, is_open=True)
    plain.start(1, opening, reasoning=budget, max_tokens=40)
    plain.until_ended(1)
    assert plain.sampled[1][5 : 5 + len(close)] == close
    assert plain.texts[1].count(b"</think>") == 1


def test_seeded_sampling_continues_elsewhere_with_every_random_stage(plain: Engine) -> None:
    sampling = attrs.evolve(DICE, xtc_probability=0.5, xtc_threshold=0.05)
    plain.start(1, STORY, sampling=sampling, max_tokens=24)
    plain.until_ended(1)
    plain.start(2, STORY, sampling=sampling, max_tokens=24, sampled=plain.sampled[1][:9])
    plain.until_ended(2)
    assert plain.sampled[1][9:] == plain.sampled[2]


def test_reasoning_is_not_closed_inside_a_character(plain: Engine) -> None:
    snowman = plain.vocabulary.tokenize("☃", add_special=False, parse_special=False)
    assert len(snowman) > 1, "it must be several tokens"
    close = plain.vocabulary.tokenize("</think>", add_special=False, parse_special=True)
    grammar = gbnf('root ::= "☃"+ "</think>" [a-z]+')
    budget = ReasoningBudget(1, [], close, is_open=True)
    plain.start(
        1, STORY.replace("\n\n</think>\n\n", ""), grammar=grammar, reasoning=budget, max_tokens=12
    )
    plain.until_ended(1)
    thought, closed, _ = plain.texts[1].partition(b"</think>")
    assert closed
    assert thought.decode() == "☃" * len(thought.decode())


# ---------------------------------------------------------------------------------- busy programs


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """So many processes that compute and never wait, until the block ends."""
    spin = "import time\nuntil = time.monotonic() + 120\nwhile time.monotonic() < until: pass"
    with ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", spin]))
            stack.callback(process.kill)
        yield


@pytest.mark.skipif(granted_cores() < 2, reason="one thread has nobody to wait for")
def test_fewer_threads_compute_beside_busy_programs(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = int(granted_cores())
    for name, value in PATIENT_WAITING.items():
        monkeypatch.setenv(name, value)
    with running(vocabulary, is_command=True) as engine, busy_programs(cores):
        engine.load(attrs.evolve(LOAD, threads=cores))
        deadline_s = time.monotonic() + 60
        key = 0
        while engine.stats is None or engine.stats.threads == cores:
            assert time.monotonic() < deadline_s, engine.stats
            key += 1
            engine.start(key, STORY, max_tokens=200, sampling=attrs.evolve(DICE, ignore_eos=True))
            engine.until_ended(key)
        assert 1 <= engine.stats.threads < cores


BREAKS_OFF = """
import math, os, runpy
from paddler_trio.processes.engine import pass_watchdog
from paddler_trio.scheduler.batching.thread_count import ThreadCount

def passed(count, wall_s, ran_s, *, paged_in, now_s):
    is_other, count.now = count.now != count.most, count.most
    return is_other

def broken_off(count, now_s):
    os.write(2, b"broken off")
    count.now = count.least

pass_watchdog.LOOK_S = 0.0
ThreadCount.limit_s = lambda count, expected_s: 0.0 if count.now > count.least else math.inf
ThreadCount.passed, ThreadCount.broken_off = passed, broken_off
runpy.run_module("paddler_trio.processes.engine", run_name="__main__")
"""
"""An engine that breaks off whatever it may, as soon as it may: it tries all its threads again in
each pass, however slow they are beside other programs."""


def test_passes_that_are_broken_off_cost_no_token(vocabulary: Vocabulary, tmp_path: Path) -> None:
    load = attrs.evolve(LOAD, threads=2, k_cache_dtype="Q8_0", v_cache_dtype="Q8_0")
    sampling = attrs.evolve(GREEDY, ignore_eos=True)
    with running(vocabulary) as engine:
        engine.load(load)
        engine.start(1, STORY, max_tokens=250, sampling=sampling)
        engine.until_ended(1)
    told = tmp_path / "told"
    with (
        told.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-c", BREAKS_OFF],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        try:
            broken = Engine(process, vocabulary)
            broken.load(load)
            broken.start(1, STORY, max_tokens=250, sampling=sampling)
            broken.until_ended(1)
        finally:
            process.kill()
    said = told.read_bytes()
    assert said.count(b"broken off") >= 10
    assert b"failed to" not in said, "what is meant to happen is no warning in a log"
    assert broken.sampled == engine.sampled
