"""The embedding loop when llama.cpp fails: the culprit alone is failed (W14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import attrs
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.processes.engine.llama.embedder import Embedder
from paddler_trio.processes.engine.llama.embedding_context import (
    EmbeddingContext,
    EmbeddingFailedError,
    Tokens,
)
from paddler_trio.processes.engine.stats import Counters
from paddler_trio.scheduler.batching.thread_count import ThreadCount
from paddler_trio.wire.engine.engine_pipe import (
    Embedded,
    EmbeddingShape,
    EmbeddingStep,
    EmbedDocuments,
    EngineStats,
    StopEmbedding,
)

POISON = 13


@attrs.define
class PoisonedContext:
    """Computes the first token of each document; nothing at all of a pass with poison in it.

    llama.cpp itself cannot be made to fail on demand.
    """

    shape: EmbeddingShape = attrs.field(factory=lambda: EmbeddingShape(64, 1, "Mean"))
    max_documents: int = 8
    threads: list[int] = attrs.field(factory=list)
    passes: int = 0

    def use_threads(self, threads: int) -> None:
        self.threads.append(threads)

    def compute(self, documents: Sequence[Tokens]) -> list[bytes]:
        self.passes += 1
        assert len(documents) <= self.max_documents
        assert sum(map(len, documents)) <= self.shape.max_tokens
        if any(POISON in document for document in documents):
            raise EmbeddingFailedError("poison")
        return [document[:1].astype("<f4").tobytes() for document in documents]


def embedder(
    context: PoisonedContext,
    *,
    is_generating: bool = False,
    stats: list[EngineStats] | None = None,
) -> tuple[Embedder, list[Embedded]]:
    said: list[Embedded] = []
    counters = Counters([].append if stats is None else stats.append)

    def report(step: EmbeddingStep) -> None:
        assert step.embedded, "an empty step says nothing"
        said.extend(step.embedded)

    as_context = cast("EmbeddingContext", context)
    made = Embedder(as_context, 100, ThreadCount(8), lambda: is_generating, report, counters)
    return made, said


def ask(key: int, documents: Sequence[Sequence[int]]) -> EmbedDocuments:
    return EmbedDocuments(key, [np.array(each, "<i4").tobytes() for each in documents])


@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=30), min_size=1, max_size=40))
def test_every_document_is_answered_once_and_only_poisoned_ones_fail(
    documents: list[list[int]],
) -> None:
    loop, said = embedder(PoisonedContext())
    half = len(documents) // 2
    loop.commands.put(ask(1, documents[:half]))
    loop.commands.put(ask(2, documents[half:]))
    loop.take_commands(wait=False)
    for _ in range(len(documents)):
        loop.run_pass()
    assert len(said) == len(documents)
    found = {(each.key, each.index): each for each in said}
    for place, document in enumerate(documents):
        each = found[(1, place) if place < half else (2, place - half)]
        if POISON in document:
            assert (each.values, each.problem) == (b"", "poison")
        else:
            assert np.frombuffer(each.values, "<f4").tolist() == document[:1]
            assert not each.problem


def test_one_poisoned_document_of_many_costs_few_further_passes() -> None:
    context = PoisonedContext()
    loop, said = embedder(context)
    loop.commands.put(ask(1, [[1], [2], [3], [4], [POISON], [6], [7], [8]]))
    loop.take_commands(wait=False)
    loop.run_pass()
    assert len(said) == 8
    assert context.passes == 7  # 8, then halves along one path: 2 + 2 + 2


def test_a_stop_drops_what_is_left_and_nothing_is_kept() -> None:
    loop, said = embedder(PoisonedContext())
    loop.commands.put(ask(1, [[5] * 60] * 3))
    loop.take_commands(wait=False)
    loop.run_pass()
    steps: list[EmbeddingStep] = []
    loop.report = steps.append
    loop.commands.put(StopEmbedding(1))
    loop.take_commands(wait=False)
    loop.run_pass()
    assert [each.index for each in said] == [0]
    assert steps == [EmbeddingStep([])], "the stop is answered"
    assert not loop._tokens


def test_a_stop_is_answered_even_if_nothing_was_left_of_it() -> None:
    loop, _ = embedder(PoisonedContext())
    steps: list[EmbeddingStep] = []
    loop.report = steps.append
    loop.commands.put(StopEmbedding(1))
    loop.take_commands(wait=False)
    loop.run_pass()
    loop.run_pass()
    assert steps == [EmbeddingStep([])]


def test_generation_leaves_it_a_quarter_of_the_threads() -> None:
    for is_generating, threads in ((False, 8), (True, 2)):
        context = PoisonedContext()
        loop, _ = embedder(context, is_generating=is_generating)
        loop.commands.put(ask(1, [[5]]))
        loop.take_commands(wait=False)
        loop.run_pass()
        assert context.threads == [threads]


def test_what_was_embedded_is_counted_and_what_failed_is_not() -> None:
    stats: list[EngineStats] = []
    loop, _ = embedder(PoisonedContext(), stats=stats)
    loop.commands.put(ask(1, [[1, 2], [POISON], [3, 4, 5], []]))
    loop.take_commands(wait=False)
    loop.run_pass()
    loop.run_pass()
    assert len(stats) == 1, "there was nothing new to say"
    assert (stats[0].embedding_documents, stats[0].embedding_tokens) == (2, 5)
    assert stats[0].embedding_passes == 2  # 3 documents fail together, then 1 + (1, 1)
    loop.commands.put(StopEmbedding(1))
    loop.commands.put(ask(2, [[6]]))
    loop.take_commands(wait=False)
    loop.run_pass()
    assert [each.embedding_documents for each in stats] == [2, 3]
