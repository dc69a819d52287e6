"""The loop that embeds: documents of all requests, packed pass after pass, in a thread of its own.

llama.cpp's calls release the interpreter, so tokens are sampled beside it. Generation comes first:
while it runs, this thread takes few cores and asks the scheduler for less of them, so that a flood
of documents slows answers and never stalls them (measured: ``docs/life_of_a_request.md``).
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import NoReturn, TypeAlias

import attrs
import numpy as np

from paddler_trio.processes.engine.llama.embedding_context import (
    EmbeddingContext,
    EmbeddingFailedError,
    Tokens,
)
from paddler_trio.processes.engine.stats import Counters
from paddler_trio.scheduler.batching.embedding_pack import Document, EmbeddingQueue
from paddler_trio.scheduler.batching.thread_count import ThreadCount
from paddler_trio.system.machine import paged_in
from paddler_trio.system.thread_priority import give_way
from paddler_trio.wire.engine.crash_record import Activity, ActivityCells, CrashRecord
from paddler_trio.wire.engine.engine_pipe import (
    PROBE_KEY,
    Embedded,
    EmbeddingStep,
    EmbedDocuments,
    StopEmbedding,
)

PASS_TOKENS = 512
"""Enough to keep every core busy; few enough that a stop is soon noticed and that documents of
one pass do not cost more by attending past each other."""
NICENESS = 10
"""Linux keeps it by thread: against one of niceness 0 this one gets a tenth of a core."""

EmbeddingCommand: TypeAlias = EmbedDocuments | StopEmbedding


@attrs.define(eq=False)
class Embedder:
    """All documents of one engine.

    Args:
      threads: of a pass while nothing generates.
      is_generating: whether the other context works now; asked before each pass.
      report: called once a pass with what it produced; blocks if the agent does not read.
      counters: where passes are counted.
      record: where this thread notes the requests it works for.
    """

    context: EmbeddingContext
    n_vocab: int
    threads: ThreadCount
    is_generating: Callable[[], bool]
    report: Callable[[EmbeddingStep], None]
    counters: Counters
    record: CrashRecord = attrs.field(factory=CrashRecord.unread)
    commands: SimpleQueue[EmbeddingCommand] = attrs.field(factory=SimpleQueue, init=False)
    _queue: EmbeddingQueue = attrs.field(init=False)
    _tokens: dict[int, dict[int, Tokens]] = attrs.field(factory=dict, init=False)
    """The tokens by request and index: every document that is not answered yet."""
    _step: list[Embedded] = attrs.field(factory=list, init=False)
    _owes_step: bool = attrs.field(default=False, init=False)
    """Something was stopped since the last step, which is told even without a result: the agent
    ends an engine that does not get that far."""
    _doing: ActivityCells = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        tokens = min(PASS_TOKENS, self.context.shape.max_tokens)
        self._queue = EmbeddingQueue(tokens, self.context.max_documents)
        self._doing = self.record.cells(Activity.EMBEDDING, threading.get_ident())

    def start(self, on_crash: Callable[[], None]) -> None:
        """Run in a thread of its own, which ends with the process; if it fails, ``on_crash`` is
        called after a traceback."""

        def run() -> None:
            try:
                give_way(NICENESS)
                self.run_forever()
            except Exception as error:  # noqa: BLE001  # without this thread, documents wait
                if not isinstance(error, BrokenPipeError):  # that is the agent leaving first
                    traceback.print_exc()
                on_crash()

        threading.Thread(target=run, name="embedder", daemon=True).start()

    def run_forever(self) -> NoReturn:
        """Pass after pass; sleeps only while there is nothing to compute."""
        self._doing = self.record.cells(Activity.EMBEDDING, threading.get_ident())
        while True:
            self.take_commands(wait=self._queue.is_empty)
            self.run_pass()

    def take_commands(self, *, wait: bool) -> None:
        """Apply everything that arrived; with ``wait``, block until something does."""
        with contextlib.suppress(Empty):
            if wait:
                self._apply(self.commands.get())
            while True:
                self._apply(self.commands.get_nowait())

    def run_pass(self) -> None:
        """Compute one pack and report it, and now and then what was counted."""
        pack = self._queue.next_pack()
        if pack:
            is_beside = self.is_generating()
            few = max(1, self.threads.most // 4)
            self.context.use_threads(few if is_beside else self.threads.now)
            self._compute(pack, is_beside=is_beside)
        if self._step or self._owes_step:
            step = EmbeddingStep(self._step)
            self._step, self._owes_step = [], False
            self.report(step)
        is_last = self._queue.is_empty and self.commands.empty()
        self.counters.report_embedding(time.monotonic(), force=is_last)

    def _apply(self, command: EmbeddingCommand) -> None:
        match command:
            case EmbedDocuments(key, documents, isolated):
                taken: dict[int, Tokens] = {}
                for index, document in enumerate(documents):
                    tokens = np.frombuffer(document, "<i4")
                    if problem := self._refusal(tokens):
                        self._step.append(Embedded(key, index, b"", problem))
                    else:
                        taken[index] = tokens
                if taken:
                    self._tokens[key] = taken
                    self._queue.add(
                        [Document(key, i, len(each)) for i, each in taken.items()],
                        isolated=isolated,
                    )
            case StopEmbedding(key):
                self._queue.drop(key)
                self._tokens.pop(key, None)
                self._owes_step = True

    def _refusal(self, tokens: Tokens) -> str:
        """Return why this document must not reach llama.cpp; empty if it may."""
        longest = self.context.shape.max_tokens
        if not 1 <= len(tokens) <= longest:
            return f"the document has {len(tokens)} tokens, must have 1 to {longest}"
        stray = tokens[(tokens < 0) | (tokens >= self.n_vocab)]
        if stray.size:
            return f"token {stray[0]} is outside the vocabulary of {self.n_vocab}"
        return ""

    def _compute(self, pack: Sequence[Document], *, is_beside: bool) -> None:
        """Embed a pack, beside generation or alone; on failure split it until the culprit is alone
        ."""
        tokens = [self._tokens[document.key][document.index] for document in pack]
        started_s, ran_s = time.perf_counter(), time.thread_time()
        self._doing.begin_all(sorted({document.key for document in pack}))
        try:
            vectors = self.context.compute(tokens)
            self._doing.end()
        except EmbeddingFailedError as error:
            self._doing.end()
            if len(pack) == 1:
                self._answer(pack[0], b"", str(error))
                return
            middle = len(pack) // 2
            self._compute(pack[:middle], is_beside=is_beside)
            self._compute(pack[middle:], is_beside=is_beside)
            return
        now_s, ran_s = time.perf_counter(), time.thread_time() - ran_s
        if not is_beside:
            self.threads.passed(now_s - started_s, ran_s, paged_in=paged_in(), now_s=now_s)
        if pack[0].key != PROBE_KEY:  # that one is alone
            self.counters.embedded(
                documents=len(pack),
                tokens=sum(document.length for document in pack),
                pass_ms=1000 * (now_s - started_s),
            )
        for document, values in zip(pack, vectors, strict=True):
            self._answer(document, values)

    def _answer(self, document: Document, values: bytes, problem: str = "") -> None:
        left = self._tokens[document.key]
        del left[document.index]
        if not left:
            del self._tokens[document.key]
        self._step.append(Embedded(document.key, document.index, values, problem))
