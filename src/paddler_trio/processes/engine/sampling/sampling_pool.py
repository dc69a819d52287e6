"""Sampling for many sequences at once, and the log-probabilities of what was sampled."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.sampling.constraint import GrammarRejectedError
from paddler_trio.processes.engine.sampling.sampler import Sampler
from paddler_trio.processes.engine.sampling.shortlist import best_of
from paddler_trio.scheduler.batching.batch_plan import ScheduledChunk
from paddler_trio.wire.engine.crash_record import (
    MAX_SAMPLING_THREADS,
    Activity,
    ActivityCells,
    CrashRecord,
)
from paddler_trio.wire.engine.engine_pipe import Logprobs

T = TypeVar("T")
R = TypeVar("R")

WORTH_THREADS = 4 * 32768
"""Logits to look at, all sequences together, below which handing work to threads costs more."""


class SamplingPool:
    """Threads that sample side by side: llama.cpp's samplers release the interpreter.

    Args:
      threads: as many as the engine computes with; they are idle while tokens are sampled.
      n_vocab: logits of one sequence.
      record: where each notes the requests it samples for.
    """

    def __init__(self, threads: int, n_vocab: int, record: CrashRecord | None = None) -> None:
        self._n_vocab = n_vocab
        self._record = record or CrashRecord.unread()
        self._numbers = itertools.count(Activity.SAMPLING + 1)
        self._local = threading.local()
        self._executor = (
            ThreadPoolExecutor(min(threads, MAX_SAMPLING_THREADS), "sampling", self._enter)
            if threads > 1
            else None
        )

    def map(
        self,
        sample: Callable[[T, ActivityCells], R],
        items: Sequence[T],
        doing: ActivityCells,
    ) -> Iterable[R]:
        """Return ``sample`` of each item, in order, with the activity cells of the thread it runs
        in: ``doing`` if that is this one."""
        if self._executor is None or len(items) * self._n_vocab < WORTH_THREADS or len(items) < 2:
            return (sample(item, doing) for item in items)

        def sample_here(item: T) -> R:
            try:
                return sample(item, self._local.doing)
            except Exception:
                self._record.failed(threading.get_ident())  # not the thread that will raise it
                raise

        return self._executor.map(sample_here, items)

    def _enter(self) -> None:
        """Prepare a new thread of the pool."""
        self._local.doing = self._record.cells(next(self._numbers), threading.get_ident())


def first_tokens(
    llama: Llama,
    pool: SamplingPool,
    samplers: Sequence[Sampler],
    rows: Sequence[tuple[ScheduledChunk, int]],
    doing: ActivityCells,
) -> list[int | GrammarRejectedError]:
    """Return the token after each chunk, or why there is none: the most likely ones are found in
    one go, others and what grammars are asked side by side. ``rows`` are all chunks that want
    logits, in their order; ``doing`` is this thread's."""
    outputs = [1 + len(chunk.drafts) for chunk, _ in rows]
    tokens: list[int | GrammarRejectedError] = [-1] * len(rows)
    rest = [index for index, sampler in enumerate(samplers) if not sampler.is_argmax]
    likely: dict[int, int] = {}
    if any(sampler.is_plain for sampler in samplers):
        each = llama.most_likely(sum(outputs))
        if not rest and len(each) == len(rows):
            tokens[:] = each
            return tokens
        place = 0
        for index, sampler in enumerate(samplers):
            if sampler.is_plain:
                tokens[index] = likely[index] = each[place]
            place += outputs[index]

    def sample(index: int, here: ActivityCells) -> int | GrammarRejectedError:
        chunk, row = rows[index]
        here.begin(chunk.sequence.key)
        token: int | GrammarRejectedError
        try:
            position = chunk.sequence.num_tokens
            token = samplers[index].sample(row, position=position, likely=likely.get(index))
        except GrammarRejectedError as error:
            token = error
        here.end()
        return token

    for index, token in zip(rest, pool.map(sample, rest, doing), strict=True):
        tokens[index] = token
    return tokens


def logprobs_of(llama: Llama, row: int, token: int, count: int) -> Logprobs:
    """Return the sampled token, then the ``count`` most likely ones, best first; natural logarithms
    of the model's own probabilities, before any sampler changed them."""
    logits = llama.logits(row)
    peak = logits.max()
    normal = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    tokens = [token, *best_of(logits, count).tolist()]
    values = (logits[tokens].astype(np.float64) - normal).tolist()
    return Logprobs(tokens, [llama.token_bytes(each) for each in tokens], values)
