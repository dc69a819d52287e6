"""The agent's end of the record of what an engine is computing.

A first decode, before an engine serves: does it compute, and are its numbers numbers?

A build or a driver that cannot run this model shows it here, in a load that fails, and not in the
answers of the first clients. Pure: frames to send, and a verdict on those that come back.

The prompt is two tokens from different places of the vocabulary, so that no tokeniser is needed. A
pass of a large model on a CPU takes a second, and a request may be waiting for this load: so there
are two, one that reads a prompt and one that continues it. Nothing stays in the prefix cache.
"""

from __future__ import annotations

import math
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Final

import attrs
import numpy as np

from paddler_trio.errors import EngineError
from paddler_trio.scheduler.batching.suspects import Death, Work, suspects
from paddler_trio.wire.engine.crash_record import RECORD_BYTES, Activity, read_record
from paddler_trio.wire.engine.engine_pipe import (
    PROBE_KEY,
    EmbeddingStep,
    EmbedDocuments,
    Ready,
    StartSequence,
    Step,
)
from paddler_trio.wire.engine.sampler_stages import Sampling

_OWN_SIGNALS = {
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
}
"""The signals that a process which fails dies of; all others are sent to it."""
_COMPUTES = {Activity.DECODING, Activity.SEEING, Activity.EMBEDDING}
_TAKES_MEMORY = {Activity.ADMITTING, Activity.SEEING, Activity.SAMPLING}
_MOST_BYTES = RECORD_BYTES + 256 * 1024


@attrs.frozen
class Suspects:
    """The requests that may have killed an engine, by their keys: each with the number of all
    suspects, of whatever kind. One that stands alone did it."""

    sequences: Mapping[int, int] = attrs.field(factory=dict)
    embeddings: Mapping[int, int] = attrs.field(factory=dict)

    def of_sequence(self, key: int) -> int:
        """Return among how many suspects this one is; 0 if it is none."""
        return self.sequences.get(key, 0)

    def of_embeddings(self, key: int) -> int:
        """Return among how many suspects these documents are; 0 if they are none."""
        return self.embeddings.get(key, 0)


@contextmanager
def crash_record_file() -> Iterator[int]:
    """Yield a file descriptor for an engine to write its record to; gone at the end of the
    block."""
    with _nameless_file() as file:
        file.truncate(RECORD_BYTES)
        yield file.fileno()


def _nameless_file() -> IO[bytes]:
    """Return a file without a name, in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("engine"), "r+b")
    return tempfile.TemporaryFile()  # the caller closes it


def suspects_in(record: int, status: int) -> Suspects:
    """Return the requests that may have killed the engine which wrote this record.

    Args:
      status: its exit status, as :class:`subprocess.Popen` has it.
    """
    read = read_record(os.pread(record, _MOST_BYTES, 0))
    works = [
        Work(
            working.thread,
            tuple((working.activity is Activity.EMBEDDING, key) for key in working.keys),
            computes=working.activity in _COMPUTES,
            takes_memory=working.activity in _TAKES_MEMORY,
        )
        for working in read.working
    ]
    is_from_outside = status < 0 and -status not in _OWN_SIGNALS
    found = suspects(works, Death(read.thread, read.has_dump, is_from_outside))
    return Suspects(
        {key: len(found) for embeds, key in found if not embeds},
        {key: len(found) for embeds, key in found if embeds},
    )


class LoadFailedError(EngineError):
    """The engine cannot serve this model with these settings.

    ``stage``: as in :class:`~paddler_trio.wire.engine.engine_pipe.LoadFailed`, or ``probe`` (its
    first decode is wrong) or ``crash`` (it died before it was proved).
    """

    def __init__(self, stage: str, reason: str, last_words: str = "") -> None:
        said = f"; llama.cpp said: {last_words}" if last_words else ""
        super().__init__(reason + said, permanent=True, kind="load_failed")
        self.stage = stage
        self.reason = reason


def how_it_ended(status: int) -> str:
    """Return the end of a process in words: its exit status, or the name of a signal."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


PROMPT_TOKENS: Final = 2
GENERATED_TOKENS: Final = 2
_GREEDY: Final = Sampling(
    temperature=0.0,
    top_k=1,
    top_p=1.0,
    min_p=0.0,
    penalty_last_n=0,
    penalty_repeat=1.0,
    penalty_frequency=0.0,
    penalty_presence=0.0,
    seed=0,
    ignore_eos=True,
)


@attrs.define(eq=False)
class EngineProbe:
    """The probe of one life of an engine that has just greeted with ``ready``."""

    ready: Ready
    problem: str | None = attrs.field(default=None, init=False)
    """Why this engine must not serve; None as long as nothing is wrong."""
    _is_generating: bool = attrs.field(init=False)
    _is_embedding: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._is_generating = self.ready.can_generate and self.ready.n_vocab > 0
        self._is_embedding = self.ready.embedding is not None and self.ready.n_vocab > 0

    @property
    def is_over(self) -> bool:
        """Return whether there is a verdict."""
        return self.problem is not None or not (self._is_generating or self._is_embedding)

    def frames(self) -> list[StartSequence | EmbedDocuments]:
        """Return what the engine is to compute; nothing if it can do nothing."""
        frames: list[StartSequence | EmbedDocuments] = []
        if self._is_generating:
            count = max(1, min(PROMPT_TOKENS, self.ready.cells - GENERATED_TOKENS))
            frames.append(
                StartSequence(
                    PROBE_KEY,
                    self._prompt(count),
                    [],
                    GENERATED_TOKENS,
                    _GREEDY,
                    None,
                    logprobs=0,
                    reuse_prefix=False,
                )
            )
        if self._is_embedding and self.ready.embedding is not None:
            count = max(1, min(PROMPT_TOKENS, self.ready.embedding.max_tokens))
            document = np.array(self._prompt(count), "<i4").tobytes()
            frames.append(EmbedDocuments(PROBE_KEY, [document]))
        return frames

    def take(self, step: Step | EmbeddingStep) -> None:
        """Note what one pass produced."""
        if isinstance(step, EmbeddingStep):
            for embedded in step.embedded:
                self._is_embedding = False
                if embedded.problem:
                    self._fail(f"it cannot embed: {embedded.problem}")
                elif not np.isfinite(np.frombuffer(embedded.values, "<f4")).all():
                    self._fail("its embeddings are not finite")
            return
        for token in step.sampled:
            # the logarithm of a probability: not finite if any logit is no number or infinite
            if token.logprobs is not None and not all(map(math.isfinite, token.logprobs.values)):
                self._fail("its logits are not finite")
        for ending in step.endings:
            self._is_generating = False
            if ending.reason != "length":
                detail = f": {ending.detail}" if ending.detail else ""
                self._fail(f"its first tokens ended with {ending.reason!r}{detail}")

    def _fail(self, problem: str) -> None:
        self.problem = self.problem or problem

    def _prompt(self, count: int) -> list[int]:
        """Return token ids of the vocabulary, ``count`` of them."""
        return [self.ready.n_vocab * place // (count + 1) for place in range(1, count + 1)]
