"""The first decode of an engine: what it is given, and which answers make it unfit to serve."""

from __future__ import annotations

import math

import attrs
import numpy as np
import pytest

from paddler_trio.agent.children.engine_crash import GENERATED_TOKENS, PROMPT_TOKENS, EngineProbe
from paddler_trio.wire.engine.engine_pipe import (
    PROBE_KEY,
    Embedded,
    EmbeddingShape,
    EmbeddingStep,
    EmbedDocuments,
    Ending,
    Logprobs,
    Ready,
    SampledToken,
    StartSequence,
    Step,
)

GENERATES = Ready(cells=256, n_batch=512, n_ctx_train=2048, n_vocab=32000)
EMBEDS = Ready(
    cells=0,
    n_batch=512,
    n_ctx_train=512,
    n_vocab=30000,
    can_generate=False,
    embedding=EmbeddingShape(max_tokens=512, width=4, pooling="Mean"),
)
BOTH = attrs.evolve(GENERATES, embedding=EMBEDS.embedding)


def sampled(logprob: float) -> Step:
    token = SampledToken(PROBE_KEY, 5, b"a", Logprobs([5], [b"a"], [logprob]))
    return Step([token], [])


def ended(reason: str = "length", detail: str = "") -> Step:
    return Step([], [Ending(PROBE_KEY, reason, 8, 0, detail)])


def embedded(*values: float, problem: str = "") -> EmbeddingStep:
    data = np.array(values, "<f4").tobytes()
    return EmbeddingStep([Embedded(PROBE_KEY, 0, data, problem)])


def test_it_asks_for_a_few_greedy_tokens_of_a_prompt_all_over_the_vocabulary() -> None:
    (start,) = EngineProbe(GENERATES).frames()
    assert isinstance(start, StartSequence)
    assert len(set(start.tokens)) == PROMPT_TOKENS
    assert all(0 <= token < GENERATES.n_vocab for token in start.tokens)
    assert (start.max_tokens, start.logprobs) == (GENERATED_TOKENS, 0)
    assert start.sampling.temperature == 0
    assert start.sampling.ignore_eos, "or a model that ends at once proves little"
    assert not start.reuse_prefix, "nothing of it stays"


@pytest.mark.parametrize("n_vocab", [1, 2, 9])
@pytest.mark.parametrize("cells", [1, 4, 256])
def test_small_vocabularies_and_contexts_are_probed_too(n_vocab: int, cells: int) -> None:
    (start,) = EngineProbe(attrs.evolve(GENERATES, n_vocab=n_vocab, cells=cells)).frames()
    assert isinstance(start, StartSequence)
    assert start.tokens
    assert all(0 <= token < n_vocab for token in start.tokens)


def test_an_engine_that_answers_is_proved_when_its_last_token_came() -> None:
    probe = EngineProbe(GENERATES)
    for _ in range(GENERATED_TOKENS):
        probe.take(sampled(-0.5))
        assert not probe.is_over
    probe.take(ended())
    assert probe.is_over
    assert probe.problem is None


def test_an_encoder_is_given_a_document() -> None:
    probe = EngineProbe(EMBEDS)
    (frame,) = probe.frames()
    assert isinstance(frame, EmbedDocuments)
    assert len(np.frombuffer(frame.documents[0], "<i4")) == PROMPT_TOKENS
    probe.take(embedded(0.5, -1))
    assert probe.is_over
    assert probe.problem is None


def test_a_model_that_does_both_must_do_both() -> None:
    probe = EngineProbe(BOTH)
    assert len(probe.frames()) == 2
    probe.take(ended())
    assert not probe.is_over
    probe.take(embedded(1.0))
    assert probe.is_over


def test_an_engine_that_can_do_nothing_has_nothing_to_prove() -> None:
    assert EngineProbe(attrs.evolve(EMBEDS, embedding=None)).is_over


@pytest.mark.parametrize("logprob", [math.nan, math.inf, -math.inf])
def test_logits_that_are_no_numbers_fail_at_once(logprob: float) -> None:
    probe = EngineProbe(GENERATES)
    probe.take(sampled(logprob))
    assert probe.is_over
    assert probe.problem == "its logits are not finite"


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (embedded(0.1, math.nan), "its embeddings are not finite"),
        (embedded(math.inf), "its embeddings are not finite"),
        (embedded(problem="no memory"), "it cannot embed: no memory"),
    ],
)
def test_embeddings_that_are_no_numbers_fail(step: EmbeddingStep, problem: str) -> None:
    probe = EngineProbe(EMBEDS)
    probe.take(step)
    assert probe.problem == problem


def test_a_sequence_that_fails_is_named_with_its_reason() -> None:
    probe = EngineProbe(GENERATES)
    probe.take(ended("failed", "llama.cpp could not compute this sequence"))
    assert probe.problem == (
        "its first tokens ended with 'failed': llama.cpp could not compute this sequence"
    )
