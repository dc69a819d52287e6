"""The loop that makes tokens: admit -> plan -> decode -> draw -> report, one pass at a time.

The plan changes nothing; a pass is committed only after llama.cpp computed it. A pass that fails
is split until the sequence that poisons it stands alone, and that one is failed (W14); a pass can
therefore never be retried for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeAlias

import attrs

from paddler_trio.engine.llama import ContextShape, Llama
from paddler_trio.engine.sampling import GrammarInvalidError, GrammarRejectedError, Sampler
from paddler_trio.scheduler.batching.admission import refusal
from paddler_trio.scheduler.batching.batch_plan import Share
from paddler_trio.scheduler.batching.sequences import Sequence
from paddler_trio.scheduler.batching.streams import Streams
from paddler_trio.wire.engine_pipe import Drawn, Ending, StartSequence, Step, StopSequence


@attrs.frozen
class Admitted:
    """A request that fits, with its sampler built: ready for a stream."""

    start: StartSequence
    sampler: Sampler


Command: TypeAlias = Admitted | Ending | StopSequence
"""What reaches the loop: a request, the refusal of one, or the wish to end one."""


def admit(llama: Llama, shape: ContextShape, start: StartSequence) -> Admitted | Ending:
    """Check a request and build its sampler; runs beside the decode loop, never in it (W22)."""
    refused = refusal(
        num_prompt_tokens=len(start.tokens),
        num_drawn=len(start.drawn),
        max_tokens=start.max_tokens,
        cells=shape.cells,
    )
    if refused is not None:
        return Ending(start.key, "refused", len(start.tokens), 0, refused.reason)
    stray = next((t for t in (*start.tokens, *start.drawn) if not 0 <= t < shape.n_vocab), None)
    if stray is not None:
        detail = f"token {stray} is outside the vocabulary of {shape.n_vocab}"
        return Ending(start.key, "refused", len(start.tokens), 0, detail)
    try:
        sampler = Sampler.build(llama, start.sampling, start.grammar, cells=shape.cells)
    except GrammarInvalidError as error:
        return Ending(start.key, "grammar_invalid", len(start.tokens), 0, str(error))
    try:
        for token in start.drawn:
            sampler.replay(token)
    except GrammarRejectedError as error:
        sampler.close()
        return Ending(start.key, "grammar_rejected", len(start.tokens), 0, str(error))
    return Admitted(start, sampler)


@attrs.define
class _Running:
    tokens: list[int]
    """The prompt and everything drawn since."""
    sampler: Sampler
    num_prompt_tokens: int


@attrs.define
class DecodeLoop:
    """All sequences of one engine.

    Args:
      commands: filled by the thread that reads the pipe.
      report: called once per pass with what it produced; blocks if the agent does not read.
    """

    llama: Llama
    shape: ContextShape
    streams: Streams
    commands: SimpleQueue[Command]
    report: Callable[[Step], None]
    _requests: dict[int, _Running] = attrs.field(factory=dict, init=False)
    _drawn: list[Drawn] = attrs.field(factory=list, init=False)
    _endings: list[Ending] = attrs.field(factory=list, init=False)

    def run_forever(self) -> None:
        """Pass after pass; sleeps only while there is nothing to compute."""
        while True:
            self.take_commands(wait=self.streams.is_idle)
            self.run_pass()

    def take_commands(self, *, wait: bool) -> None:
        """Apply everything that arrived; with ``wait``, block until something does."""
        with contextlib.suppress(Empty):
            if wait:
                self._apply(self.commands.get())
            while True:
                self._apply(self.commands.get_nowait())

    def run_pass(self) -> None:
        """Plan, decode, draw and report once."""
        while (sequence := self.streams.start_next()) is not None:
            self.llama.forget(sequence.stream)
        shares = self.streams.plan()
        if shares:
            self._decode(shares)
        if self._drawn or self._endings:
            step = Step(self._drawn, self._endings)
            self._drawn, self._endings = [], []
            self.report(step)

    def _apply(self, command: Command) -> None:
        match command:
            case Admitted(start, sampler):
                tokens = start.tokens + start.drawn
                self._requests[start.key] = _Running(tokens, sampler, len(start.tokens))
                self.streams.enqueue(
                    start.key,
                    num_prompt_tokens=len(start.tokens),
                    max_tokens=start.max_tokens,
                    num_drawn=len(start.drawn),
                )
            case Ending():
                self._endings.append(command)
            case StopSequence(key):
                if key in self._requests:  # else it ended by itself meanwhile
                    self._end(key, "stopped")

    def _decode(self, shares: tuple[Share, ...]) -> None:
        """Compute these shares; on failure split them until the culprit is alone."""
        batch = self.llama.batch
        batch.clear()
        drawing: list[tuple[Sequence, int]] = []
        for share in sorted(shares, key=lambda share: share.sequence.stream):
            row = batch.add(
                self._requests[share.sequence.key].tokens[share.start : share.start + share.count],
                start=share.start,
                stream=share.sequence.stream,
                logits=share.wants_logits,
            )
            if share.wants_logits:
                drawing.append((share.sequence, row))
        code = self.llama.decode()
        if code == 0:
            self.streams.commit(shares)
            likely = self._most_likely([sequence for sequence, _ in drawing])
            for (sequence, row), token in zip(drawing, likely, strict=True):
                self._draw(sequence, row, token)
            return
        for share in shares:
            self.llama.trim(share.sequence.stream, share.start)
        if len(shares) == 1:
            detail = f"llama.cpp could not compute this sequence (code {code})"
            self._end(shares[0].sequence.key, "failed", detail)
            return
        middle = len(shares) // 2
        self._decode(shares[:middle])
        self._decode(shares[middle:])

    def _most_likely(self, sequences: list[Sequence]) -> list[int | None]:
        """The tokens of all greedy sequences in one go; None where a sampler must look."""
        greedy = [self._requests[sequence.key].sampler.is_argmax for sequence in sequences]
        if not any(greedy):
            return [None] * len(sequences)
        best = self.llama.most_likely(len(sequences))
        return [token if wanted else None for token, wanted in zip(best, greedy, strict=True)]

    def _draw(self, sequence: Sequence, row: int, likely: int | None) -> None:
        request = self._requests[sequence.key]
        try:
            token = likely
            if token is None:
                token = request.sampler.draw(row, position=sequence.num_tokens)
        except GrammarRejectedError as error:
            self._end(sequence.key, "grammar_rejected", str(error))
            return
        request.tokens.append(token)
        sequence.num_drawn += 1
        self._drawn.append(Drawn(sequence.key, token, self.llama.token_bytes(token)))
        if self.llama.is_end_of_generation(token):
            self._end(sequence.key, "stop")
        elif sequence.num_drawn >= sequence.max_tokens:
            self._end(sequence.key, "length")
        elif sequence.drawn_out(self.shape.cells):
            self._end(sequence.key, "cells")

    def _end(self, key: int, reason: str, detail: str = "") -> None:
        request = self._requests.pop(key)
        request.sampler.close()
        sequence = self.streams.end(key)
        if sequence is not None:
            self.llama.forget(sequence.stream)
        self._endings.append(Ending(key, reason, request.num_prompt_tokens, 0, detail))
