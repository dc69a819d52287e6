"""The loop that makes tokens: admit -> plan -> decode -> sample -> report, one pass at a time.

The plan changes nothing; a pass is committed only after llama.cpp computed it. A pass that fails
is split until the sequence that poisons it is alone, and that one fails; so no pass is
retried for ever, and an engine that keeps failing exits to be restarted.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeAlias

import attrs

from paddler_trio.errors import EngineError
from paddler_trio.processes.engine.admitted import Admitted
from paddler_trio.processes.engine.decode_calls import Content, fill, part
from paddler_trio.processes.engine.llama.context_shape import ContextShape
from paddler_trio.processes.engine.llama.draft_model import DraftModel
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.pass_watchdog import PassWatchdog
from paddler_trio.processes.engine.sampling.constraint import GrammarRejectedError
from paddler_trio.processes.engine.sampling.sampler import Sampler
from paddler_trio.processes.engine.sampling.sampling_pool import (
    SamplingPool,
    first_tokens,
    logprobs_of,
)
from paddler_trio.processes.engine.stats import Counters
from paddler_trio.processes.engine.stored_prefixes import StoredPrefixes
from paddler_trio.scheduler.batching.anticipation import Anticipation
from paddler_trio.scheduler.batching.batch_plan import PrefillBudget, ScheduledChunk
from paddler_trio.scheduler.batching.cells import SplitCells, UnifiedCells
from paddler_trio.scheduler.batching.drafts import Drafting
from paddler_trio.scheduler.batching.image_tokens import (
    Positions,
    is_image,
    num_words,
    run_length,
)
from paddler_trio.scheduler.batching.prefill_controller import PrefillController
from paddler_trio.scheduler.batching.resident_tokens import Cut
from paddler_trio.scheduler.batching.sequences import Sequence
from paddler_trio.scheduler.batching.streams import Placement, Streams
from paddler_trio.scheduler.batching.thread_count import ThreadCount
from paddler_trio.system.machine import paged_in
from paddler_trio.wire.engine.crash_record import Activity, ActivityCells, CrashRecord
from paddler_trio.wire.engine.engine_pipe import (
    PROBE_KEY,
    Ending,
    Progress,
    SampledToken,
    StartSequence,
    Step,
    StopSequence,
)

_ABORTED = 2
_FAILURES = {
    1: "no cells were free for it",
    -1: "it calls the batch invalid",
    -2: "it has no memory for the computation",
    -3: "a computation failed",
}
"""The meanings of llama.cpp's codes."""
PROGRESS_INTERVAL_S = 0.5
ISOLATED_TOKENS = 64
"""A sequence that may have killed an engine is computed by itself until so many of its tokens are
sampled: more than were on their way to the agent when that engine died."""
_STEADY_PASSES = 4
_MOST_STEADY = 16
"""Sets of sequences whose passes are remembered."""
_MAX_FAILURES = 3
"""Sequences failed one after the other without a pass that worked between them."""


Command: TypeAlias = Admitted | Ending | StopSequence
"""The things that reach the loop: a request, the refusal of one, or a stop."""


def streams_for(llama: Llama, shape: ContextShape, slots: int, *, has_store: bool) -> Streams:
    """Return the scheduler's view of a context; ``has_store``: prefixes can be kept in host
    memory."""
    layout = UnifiedCells if shape.is_unified else SplitCells
    return Streams(
        slots,
        layout(shape.num_streams, shape.cells),
        shape.num_streams,
        shape.rules,
        llama.first_position,
        keeps_checkpoints=has_store and not shape.rules.is_cut_anywhere,
    )


@attrs.define(eq=False)
class _Request:
    """A request and what it is computed and sampled with."""

    start: StartSequence = attrs.field(repr=False)
    sequence: Sequence
    sampler: Sampler = attrs.field(repr=False)
    content: Content = attrs.field(repr=False)
    drafting: Drafting
    isolated_until: int = 0
    """Up to this length it is computed by itself; tokens."""
    num_audio_tokens: int = 0
    placed_s: float | None = None
    first_sampled_s: float | None = None
    next_progress_s: float = 0.0


@attrs.define(eq=False)
class DecodeLoop:
    """All sequences of one engine.

    Args:
      commands: filled by the thread that reads the pipe.
      report: called with what a pass produced; blocks if the agent does not read.
      max_drafts: tokens guessed ahead for each sequence, 0 for none.
      draft_model: guesses them; without it they are looked up in the text.
      threads: that compute a pass, where they are all there is to compute it.
    """

    llama: Llama
    shape: ContextShape
    streams: Streams
    prefill_controller: PrefillController
    stored: StoredPrefixes
    commands: SimpleQueue[Command]
    report: Callable[[Step], None]
    counters: Counters
    pool: SamplingPool
    max_drafts: int = 0
    draft_model: DraftModel | None = None
    threads: ThreadCount = attrs.field(factory=lambda: ThreadCount(1))
    doing: ActivityCells = attrs.field(factory=lambda: CrashRecord.unread().cells(0, 0))
    """The cells where the thread of this loop notes the requests it computes for."""
    sampling: ActivityCells = attrs.field(
        factory=lambda: CrashRecord.unread().cells(Activity.SAMPLING, 0)
    )
    """The cells where it notes the request it samples for."""
    _watchdog: PassWatchdog = attrs.field(init=False)
    _requests: dict[int, _Request] = attrs.field(factory=dict, init=False)
    _sampled: list[SampledToken] = attrs.field(factory=list, init=False)
    _endings: list[Ending] = attrs.field(factory=list, init=False)
    _progress: list[Progress] = attrs.field(factory=list, init=False)
    _in_pass: frozenset[int] = attrs.field(default=frozenset(), init=False)
    _stopping: set[int] = attrs.field(factory=set, init=False)
    _anticipation: Anticipation = attrs.field(factory=Anticipation, init=False)
    _failures: int = attrs.field(default=0, init=False)
    _steady: dict[frozenset[int], deque[float]] = attrs.field(factory=dict, init=False)
    """The times of the last passes that computed the next tokens of these sequences, and nothing
    else; seconds. They tell how long the next one should take, whatever their contexts are."""
    _num_threads: int = attrs.field(init=False)
    _does_more: bool = attrs.field(default=False, init=False)
    """The next pass takes longer than others: in it llama.cpp copies a shared prefix, and all of a
    region, or reserves its graphs anew, since the adapters are others."""
    _positions: dict[int, Positions] = attrs.field(factory=dict, init=False)
    """The positions of what is in each stream, which is a beginning of what was placed there
    last."""

    def __attrs_post_init__(self) -> None:
        self._watchdog = PassWatchdog(self.llama.abort)
        self._num_threads = self.threads.now
        self.streams.turns.switch_ms = self.llama.adapters.switch_ms

    def __repr__(self) -> str:
        in_pass = f", in pass: {sorted(self._in_pass)}" if self._in_pass else ""
        return f"<DecodeLoop: {len(self._requests)} requests{in_pass}, {self.streams!r}>"

    def run_forever(self) -> None:
        """Pass after pass; sleeps only while there is nothing to compute."""
        while True:
            if self.streams.is_idle:
                self._wait()
            self.take_commands()
            self.run_pass()
            self.stored.save_between_passes(self.streams)

    def take_commands(self) -> None:
        """Apply everything that arrived."""
        while not self.commands.empty():  # nobody else takes any
            self._apply(self.commands.get_nowait())

    def hurry(self, key: int) -> None:
        """Note that this sequence is to be stopped; from any thread. A pass that computes only for
        such sequences is not worth finishing and is aborted."""
        if key not in self._requests:
            return  # it ended by itself, or has not begun
        self._stopping.add(key)
        in_pass = self._in_pass
        if in_pass and in_pass <= self._stopping:
            self.llama.abort()

    def run_pass(self) -> None:
        """Plan, decode, sample and report once.

        With regions of their own, those that generate are computed first; then come prompts, also
        of those that arrived meanwhile.
        """
        self._place_waiting()
        self.streams.turns.begin(self.streams.running)
        began_s = time.thread_time()
        if self.max_drafts and self.shape.rules.can_trim:
            self._guess()
        n_batch = self.shape.n_batch
        if self.shape.is_unified:
            budget = self._prompt_budget()
            self._cut(*self.streams.make_room(budget))
            took_s = self._compute(self.streams.plan(token_budget=n_batch, prefill_budget=budget))
        else:
            self.streams.fit_drafts()
            num_running = self.streams.num_running
            generating = self.streams.plan_generating(token_budget=n_batch)
            took_s = self._compute(generating)
            if generating:
                self.stored.save_between_passes(self.streams)
                if self.streams.num_running < num_running:
                    self._wait_for_successor()
                self.take_commands()
                self._place_waiting()
            if self.streams.has_prompts:
                budget = self._prompt_budget()
                took_s += self._compute(
                    self.streams.plan_prompts(token_budget=n_batch, prefill_budget=budget)
                )
        self.streams.turns.passed(1e3 * took_s, 1e3 * (time.thread_time() - began_s))
        self._report_step()
        self._report_stats()

    # ------------------------------------------------------------- arrival

    def _wait(self) -> None:
        """Wait until something arrives; what is in the cache is copied to host memory meanwhile."""
        self._report_stats(force=True)
        while True:
            wait_s = self.stored.idle_wait_s(self.streams)
            try:
                self._apply(self.commands.get(timeout=wait_s))
            except Empty:
                if self.stored.save_while_idle(self.streams):
                    self._report_held()
            else:
                return

    def _apply(self, command: Command) -> None:
        match command:
            case Admitted(start, sampler, embeddings, num_audio_tokens):
                adapters = tuple((each.place, each.scale) for each in start.adapters)
                sequence = Sequence(
                    start.key,
                    start.tokens + start.sampled,
                    len(start.tokens),
                    start.max_tokens,
                    self.llama.adapters.key(adapters) + start.salt if start.reuse_prefix else None,
                    adapters,
                )
                self._requests[start.key] = _Request(
                    start,
                    sequence,
                    sampler,
                    Content.of(start.tokens, embeddings),
                    Drafting(0 if start.isolated else self.max_drafts),
                    sequence.num_tokens + ISOLATED_TOKENS if start.isolated else 0,
                    num_audio_tokens,
                )
                self.streams.enqueue(sequence)
            case Ending():
                self._endings.append(command)
            case StopSequence(key):
                self._stopping.discard(key)
                if key in self._requests:  # else it ended by itself meanwhile
                    self._end(key, "stopped")

    def _prepare_stream(self, placement: Placement) -> None:
        """Bring the cache into the state of the placement."""
        sequence, stream = placement.sequence, placement.stream
        request = self._requests[sequence.key]
        if request.placed_s is None:
            request.placed_s = time.perf_counter()
        self._positions[stream] = request.content.positions
        if not self._restore(placement):
            self._take_from_cache(placement)
        self.counters.now.cached_tokens += sequence.num_computed

    def _restore(self, placement: Placement) -> bool:
        """Return whether the stream has been filled from the host store; else nothing was
        touched."""
        sequence, stream = placement.sequence, placement.stream
        found = self.stored.find(sequence, better_than=placement.kept)
        if found is None:
            return False
        cuts = self.streams.make_room_for_prefix(sequence, length=found.length, size=found.size)
        if cuts is None:
            return False
        self._cut(*cuts)
        self.streams.lost_prefix(sequence)
        length = self.stored.restore(found, stream, self._positions[stream])
        if length:
            self.streams.found_prefix(sequence, length)
            self.counters.now.restores += 1
            self.counters.now.restored_tokens += length
        return True

    def _take_from_cache(self, placement: Placement) -> None:
        """Leave in the stream, or copy into it, what the cache has of the sequence."""
        sequence, stream = placement.sequence, placement.stream
        kept = self._positions[stream].at(placement.kept)
        if placement.source is None:
            self.llama.forget(stream)
        elif placement.source == stream:
            if not self.llama.trim(stream, kept):
                self.streams.lost_prefix(sequence)
        else:
            self.llama.forget(stream)
            self._does_more = True
            if not self.llama.copy(placement.source, stream, kept):
                self.streams.lost_prefix(sequence)

    def _is_isolated(self, key: int) -> bool:
        request = self._requests[key]
        return bool(request.isolated_until) and request.sequence.num_tokens < request.isolated_until

    def _guess(self) -> None:
        generating = [sequence for sequence in self.streams.members if sequence.is_generating]
        if self.draft_model is not None:
            drafting = [s for s in generating if self._may_draft(s)]
            self.doing.begin_all([sequence.key for sequence in drafting])
            self.draft_model.guess(
                drafting, count=self.max_drafts, catch_up=self._catch_up_tokens(len(generating))
            )
            self.doing.end()
            return
        for sequence in generating:
            drafts = self._requests[sequence.key].drafting.guess(sequence.tokens)
            sequence.drafts = drafts[: run_length(drafts, 0, len(drafts))]
            if sequence.drafts and is_image(sequence.drafts[0]):
                sequence.drafts = []

    def _catch_up_tokens(self, generating: int) -> int:
        """Return what all streams may wait for beside so many: the draft model is the faster
        one."""
        return self.prefill_controller.prefill_budget(generating, limit=self.shape.n_batch).tokens

    def _may_draft(self, sequence: Sequence) -> bool:
        """Return whether a draft model may guess: it sees words only."""
        request = self._requests[sequence.key]
        return not request.content.embeddings and request.drafting.may_guess()

    def _cut(self, *cuts: Cut) -> None:
        for cut in cuts:
            self.llama.trim(cut.stream, self._positions[cut.stream].at(cut.length))

    def _wait_for_successor(self) -> None:
        """Wait a moment since an answer ended: the next request may be on its way, and nothing else
        has a prompt to be computed in this pass."""
        generating = self.streams.num_generating
        if generating < self.streams.num_running or not generating or not self.commands.empty():
            return
        wait_s = self._anticipation.wait_s(self.prefill_controller.alone_ms(generating) or 0.0)
        if wait_s:
            try:
                self._apply(self.commands.get(timeout=wait_s))
            except Empty:
                self._anticipation.waited(came=False)
            else:
                self._anticipation.waited(came=True)

    # -------------------------------------------------------------- a pass

    def _place_waiting(self) -> None:
        while (placement := self.streams.start_next()) is not None:
            self.doing.begin(placement.sequence.key)
            self._prepare_stream(placement)
            self.doing.end()

    def _prompt_budget(self) -> PrefillBudget:
        generating = self.streams.num_generating
        return self.prefill_controller.prefill_budget(
            generating,
            ingesting=self.streams.num_running - generating,
            missing=self.streams.num_missing,
            limit=self.shape.n_batch,
            unit=self.shape.n_ubatch,
        )

    def _compute(self, chunks: tuple[ScheduledChunk, ...]) -> float:
        """Compute these chunks, of sequences with the same adapters, in as many calls as it takes.

        The results of a call are reported at once, unless the other calls take long: a first token
        that is early would only be followed by a pause.

        Returns:
          The seconds that it took; 0 for no chunks.
        """
        if not chunks:
            return 0.0
        began_s = time.perf_counter()
        self._does_more |= self.llama.use_adapters(chunks[0].sequence.adapters)
        isolated = frozenset(filter(self._is_isolated, self._requests))
        left = sum(chunk.count for chunk in chunks)
        for call in part(
            chunks,
            is_unified=self.shape.is_unified,
            call_tokens=self.prefill_controller.call_tokens(),
            isolated=isolated,
        ):
            if call[0].sequence.key in isolated:
                self._report_step()  # it may be the last call of this engine
            self._decode(call)
            left -= sum(chunk.count for chunk in call)
            if self.prefill_controller.is_short(left):
                self._report_step()
        return time.perf_counter() - began_s

    def _decode(self, chunks: tuple[ScheduledChunk, ...]) -> None:
        """Compute these chunks, of words or one of an image; on failure split them until the
        culprit is alone."""
        contents = [self._requests[chunk.sequence.key].content for chunk in chunks]
        call = fill(self.llama, chunks, contents)
        keys = [chunk.sequence.key for chunk in chunks]
        self._in_pass = frozenset(keys)
        self.doing.begin_all(keys)
        ran_s = time.thread_time()
        started_s = time.perf_counter()
        is_steady = self._is_steady(chunks)
        self._watchdog.begins(self._limit_s() if is_steady else math.inf)
        code = call.compute()
        is_broken_off = self._watchdog.ended()
        computed_s = time.perf_counter()
        ran_s = time.thread_time() - ran_s
        computed, self._in_pass = self._in_pass, frozenset()
        self.doing.end()
        if code == 0:
            self._failures = 0
            self._does_more = False
            if is_steady:
                self._note_steady(computed, computed_s - started_s)
            self.streams.commit(chunks)
            self._measure(chunks, 1000 * (computed_s - started_s))
            self._count_threads(computed_s - started_s, ran_s, computed_s)
            self._keep_checkpoints(chunks)
            self._note_progress(chunks, computed_s)
            self._sample(call.rows)
            self.counters.now.draw_ms += 1000 * (time.perf_counter() - computed_s)
            return
        for chunk in chunks:
            assert chunk.sequence.stream is not None
            start = self._requests[chunk.sequence.key].content.positions.at(chunk.start)
            if not self.llama.trim(chunk.sequence.stream, start):
                self.streams.lost_prefix(chunk.sequence)
        if code == _ABORTED:
            if is_broken_off:
                self.threads.broken_off(computed_s)
                self._use_threads()
            return
        if len(chunks) == 1:
            self._blame(chunks[0].sequence, code)
            return
        middle = len(chunks) // 2
        for half in (chunks[:middle], chunks[middle:]):
            still = tuple(s for s in half if s.start == s.sequence.num_computed)
            if still:
                self._decode(still)

    def _count_threads(self, wall_s: float, ran_s: float, now_s: float) -> None:
        if self.threads.passed(wall_s, ran_s, paged_in=paged_in(), now_s=now_s):
            self._use_threads()

    def _is_steady(self, chunks: tuple[ScheduledChunk, ...]) -> bool:
        """Return whether this call takes as long as the last one of the same sequences. Of others
        than next tokens that is not so, and a sequence that cannot be cut would have to be computed
        from its beginning if it were broken off."""
        return (
            self.shape.rules.can_trim
            and not self._does_more
            and all(
                chunk.count == 1 and not chunk.drafts and chunk.sequence.num_sampled
                for chunk in chunks
            )
        )

    def _limit_s(self) -> float:
        """Return how long the pass that begins may take."""
        times = self._steady.get(self._in_pass)
        return self.threads.limit_s(min(times) if times else None)

    def _note_steady(self, keys: frozenset[int], took_s: float) -> None:
        times = self._steady.get(keys)
        if times is None:
            if len(self._steady) >= _MOST_STEADY:
                self._steady.clear()
            times = self._steady[keys] = deque(maxlen=_STEADY_PASSES)
        times.append(took_s)

    def _use_threads(self) -> None:
        fewer = self._num_threads / self.threads.now
        self._num_threads = self.threads.now
        if fewer > 1:  # more of them take as long at most
            for keys, times in self._steady.items():
                self._steady[keys] = deque((fewer * each for each in times), _STEADY_PASSES)
        self.counters.now.threads = self.threads.now
        self.llama.use_threads(self.threads.now)
        if self.draft_model is not None:
            self.draft_model.llama.use_threads(self.threads.now)

    def _keep_checkpoints(self, chunks: tuple[ScheduledChunk, ...]) -> None:
        for chunk in chunks:
            sequence = chunk.sequence
            if sequence.num_computed in sequence.checkpoints:
                assert sequence.stream is not None
                assert sequence.salt is not None, "a sequence without salt shares no prefix"
                kept = sequence.tokens[: sequence.num_computed]
                self.doing.begin(sequence.key)
                self.stored.save_checkpoint(kept, sequence.salt, sequence.stream)
                self.doing.end()

    def _note_progress(self, chunks: tuple[ScheduledChunk, ...], now_s: float) -> None:
        """Report now and then how far long prompts are, and of every prompt that it is complete."""
        for chunk in chunks:
            request = self._requests[chunk.sequence.key]
            is_whole = chunk.wants_logits and chunk.sequence.num_sampled == 0
            if not is_whole and (chunk.wants_logits or now_s < request.next_progress_s):
                continue
            request.next_progress_s = now_s + PROGRESS_INTERVAL_S
            sequence = chunk.sequence
            cached = sequence.num_cached or 0
            since_ms = round(1000 * (now_s - (request.placed_s or now_s)))
            self._progress.append(
                Progress(sequence.key, sequence.num_tokens, cached, sequence.num_computed, since_ms)
            )

    def _blame(self, sequence: Sequence, code: int) -> None:
        self._failures += 1
        what = _FAILURES.get(code, "an error of its own")
        detail = f"llama.cpp could not compute this sequence: {what} (code {code})"
        self._end(sequence.key, "failed", detail)
        if self._failures >= _MAX_FAILURES:
            raise EngineError(f"{_MAX_FAILURES} sequences failed in a row, the last: {detail}")

    def _measure(self, chunks: tuple[ScheduledChunk, ...], pass_ms: float) -> None:
        if chunks[0].sequence.key == PROBE_KEY:
            return  # it is alone, and the first pass is no measure of the others
        generating = computed = guessed = 0
        for chunk in chunks:
            generating += chunk.count == 1 and chunk.sequence.num_sampled > 0
            computed += chunk.count
            guessed += len(chunk.drafts)
        prompt_tokens = computed - generating
        self.prefill_controller.measured(
            generating=generating, prompt_tokens=prompt_tokens, pass_ms=pass_ms
        )
        self.stored.budget.passed(
            pass_ms, target_ms=self.prefill_controller.pass_target_ms(generating)
        )
        self.counters.passed(
            sequences=len(chunks),
            tokens=computed + guessed,
            prompt_tokens=prompt_tokens,
            pass_ms=pass_ms,
        )

    def _sample(self, rows: list[tuple[ScheduledChunk, int]]) -> None:
        """Sample the next token of every sequence whose newest one was computed, and of drafts that
        turn out right the ones after it."""
        samplers = [self._requests[chunk.sequence.key].sampler for chunk, _ in rows]
        tokens = first_tokens(self.llama, self.pool, samplers, rows, self.sampling)
        for (chunk, row), token in zip(rows, tokens, strict=True):
            self.sampling.begin(chunk.sequence.key)
            self._take(chunk, row, token)
        self.sampling.end()

    def _take(self, chunk: ScheduledChunk, row: int, token: int | GrammarRejectedError) -> None:
        """Keep a sampled token, and go on sampling while the drafts are right."""
        sequence = chunk.sequence
        request = self._requests[sequence.key]
        accepted = 0
        while True:
            if isinstance(token, GrammarRejectedError):
                self._end(sequence.key, "grammar_rejected", str(token))
                return
            if self._keep(request, row + accepted, token):
                break  # it ended
            if accepted == len(chunk.drafts) or token != chunk.drafts[accepted]:
                break
            self.streams.accept_draft(sequence)
            accepted += 1
            try:
                token = request.sampler.sample(row + accepted, position=sequence.num_tokens)
            except GrammarRejectedError as error:
                token = error
        if chunk.drafts:
            request.drafting.judged(len(chunk.drafts), accepted)
            self.counters.now.drafted_tokens += len(chunk.drafts)
            self.counters.now.accepted_tokens += accepted
            if sequence.stream is not None:
                self._cut(self.streams.drop_drafts(sequence))

    def _keep(self, request: _Request, row: int, token: int) -> bool:
        """Report a token; True if it was the last."""
        sequence = request.sequence
        if request.first_sampled_s is None:
            request.first_sampled_s = time.perf_counter()
        sequence.tokens.append(token)
        self.counters.now.drawn_tokens += sequence.key != PROBE_KEY
        is_hidden = request.start.hides_controls and self.llama.is_control(token)
        text = b"" if is_hidden else self.llama.token_bytes(token)
        report = SampledToken(sequence.key, token, text)
        if request.start.logprobs >= 0:
            count = request.start.logprobs
            told = request.sampler.logprobs(token, count)
            if told is None:
                told = logprobs_of(self.llama, row, token, count)
            report = attrs.evolve(report, logprobs=told)
        self._sampled.append(report)
        if self.llama.is_end_of_generation(token) and not request.start.sampling.ignore_eos:
            self._end(sequence.key, "stop")
        elif 0 < sequence.max_tokens <= sequence.num_sampled:
            self._end(sequence.key, "length")
        elif sequence.is_out_of_cells(self.shape.cells):
            self._end(sequence.key, "cells")
        else:
            return False
        return True

    def _end(self, key: int, reason: str, detail: str = "") -> None:
        request = self._requests.pop(key)
        self._stopping.discard(key)
        request.sampler.close()
        cut = self.streams.end(key)
        if cut is not None:
            self._cut(cut)
        now_s = time.perf_counter()
        placed_s = request.placed_s or now_s
        first_s = request.first_sampled_s or now_s
        tokens = request.start.tokens
        cached = request.sequence.num_cached or 0
        words = num_words(tokens)
        self._endings.append(
            Ending(
                key,
                reason,
                words,
                cached if words == len(tokens) else num_words(tokens[:cached]),
                detail,
                prompt_ms=1000 * (first_s - placed_s),
                predicted_ms=1000 * (now_s - first_s),
                num_drafted=request.drafting.num_drafted,
                num_accepted=request.drafting.num_accepted,
                num_image_tokens=len(tokens) - words - request.num_audio_tokens,
                num_preemptions=request.sequence.num_preemptions,
                num_audio_tokens=request.num_audio_tokens,
            )
        )

    def _report_step(self) -> None:
        preempted = self.streams.take_preempted()
        if self._sampled or self._endings or self._progress or preempted:
            step = Step(self._sampled, self._endings, self._progress, preempted)
            self._sampled, self._endings, self._progress = [], [], []
            self.report(step)

    def _report_stats(self, *, force: bool = False) -> None:
        if self.counters.is_due(time.monotonic(), force=force):
            self._report_held()

    def _report_held(self) -> None:
        self.counters.report_streams(
            self.streams,
            stored_tokens=self.stored.num_tokens,
            stored_bytes=self.stored.num_bytes,
        )
