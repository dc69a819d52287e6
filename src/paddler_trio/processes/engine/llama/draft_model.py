"""A small model that guesses what the large one writes next; its guesses are checked by that one.

It follows every generating sequence with a cache of its own, and writes a few tokens ahead,
greedily, for all of them at once.
"""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.errors import EngineError
from paddler_trio.processes.engine.llama.context_shape import ContextShape
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.scheduler.batching.prefixes import common_prefix
from paddler_trio.scheduler.batching.sequences import Sequence
from paddler_trio.wire.engine.engine_pipe import LoadModel

MOST_OTHER_TOKENS: Final = 0.02
"""The part of all tokens that may differ."""
_SHOWN_BYTES: Final = 40


def _shown(token: bytes) -> str:
    """Return a token as an error shows it."""
    return repr(token[:_SHOWN_BYTES].decode(errors="replace"))


@attrs.define(eq=False)
class DraftModel:
    """One sequence of it for each stream of the model it guesses for."""

    llama: Llama
    shape: ContextShape
    _computed: dict[int, list[int]] = attrs.field(factory=dict, init=False)
    """The tokens in the cache of each stream."""

    @classmethod
    def load(cls, path: str, load: LoadModel, target: ContextShape, model: Llama) -> DraftModel:
        """Load a draft model; EngineError (permanent) if it cannot guess for ``model``, whose shape
        is ``target``."""
        drafts = cls.open(path, load, target)
        drafts._check_tokens(path, model)
        drafts.llama.warm_up()
        return drafts

    @classmethod
    def open(
        cls, path: str, load: LoadModel, target: ContextShape, *, no_alloc: bool = False
    ) -> DraftModel:
        """Open a draft model as :meth:`load` does, without the first pass; ``no_alloc`` as of
        :meth:`Llama.load`."""
        settings = attrs.evolve(load.settings, unified=False, lora=[], tensor_overrides=[])
        try:
            llama = Llama.load(
                path,
                n_gpu_layers=load.n_gpu_layers,
                progress=lambda _: None,
                settings=settings,
                no_alloc=no_alloc,
            )
        except EngineError as error:
            raise EngineError(
                f"the draft model (--draft-model): {error}",
                permanent=error.permanent,
                kind=error.kind,
            ) from error
        if llama.n_vocab != target.n_vocab:
            raise EngineError(
                f"the draft model {path} (--draft-model) has {llama.n_vocab} tokens, the model it "
                f"is to guess for has {target.n_vocab}: use one of the same family",
                permanent=True,
            )
        shape = llama.open_context(
            slots=target.num_streams,
            context_size=target.cells * target.num_streams,
            n_batch=target.n_batch,
            k_cache_dtype=load.k_cache_dtype,
            v_cache_dtype=load.v_cache_dtype,
            threads=load.threads,
            settings=settings,
        )
        if not shape.rules.can_trim:
            raise EngineError(
                f"the draft model {path} (--draft-model) is recurrent: it cannot take a guess back",
                permanent=True,
            )
        return cls(llama, shape)

    def _check_tokens(self, path: str, model: Llama) -> None:
        """Raise EngineError if its tokens are not those of ``model``: no guess would be right. A
        model that was tuned anew may have other special tokens."""
        tokens = range(model.n_vocab)
        others = [t for t in tokens if self.llama.written_token(t) != model.written_token(t)]
        if len(others) > MOST_OTHER_TOKENS * model.n_vocab:
            here, there = (each.written_token(others[0]) for each in (self.llama, model))
            raise EngineError(
                f"the draft model {path} (--draft-model) has other tokens than the model it is to "
                f"guess for: {len(others)} of {model.n_vocab}, of which the first is {others[0]}, "
                f"{_shown(here)} in place of {_shown(there)}; use one of the same family",
                permanent=True,
            )

    def guess(self, sequences: list[Sequence], *, count: int, catch_up: int) -> None:
        """Give each sequence up to ``count`` drafts: none where its tokens do not fit here, and
        none before all of them are computed.

        Args:
          catch_up: prompt tokens that may be computed now. All sequences wait for them, also for
            those of one whose prompt is long.
        """
        fitting = [
            sequence
            for sequence in sequences
            if sequence.num_tokens + count <= self.shape.cells and sequence.stream is not None
        ]
        written = {sequence.key: list(sequence.tokens) for sequence in fitting}
        missing = {sequence.key: self._missing(sequence, written) for sequence in fitting}
        following: list[Sequence] = []
        for sequence in sorted(fitting, key=lambda sequence: missing[sequence.key]):
            lacks = missing[sequence.key]
            if lacks <= count + 1:  # what was accepted since the last guess
                following.append(sequence)
            elif lacks <= catch_up:
                following.append(sequence)
                catch_up -= lacks
            elif catch_up:
                self._catch_up(sequence, catch_up)
                catch_up = 0
        following.sort(key=lambda sequence: sequence.stream or 0)
        for _ in range(count):
            if not self._advance(following, written):
                return
        for sequence in following:
            sequence.drafts = written[sequence.key][sequence.num_tokens :]

    def _catch_up(self, sequence: Sequence, count: int) -> None:
        """Compute the next ``count`` tokens of one that lags, or as many as fit into one call."""
        assert sequence.stream is not None
        computed = self._computed[sequence.stream]
        start = len(computed)
        part = sequence.tokens[start : start + min(count, self.shape.n_batch)]
        self.llama.batch.clear()
        self.llama.batch.add(part, start=start, stream=sequence.stream, logits=0)
        if self.llama.decode() != 0:
            self._forget([sequence])
            return
        computed += part

    def _advance(self, following: list[Sequence], written: dict[int, list[int]]) -> bool:
        """Compute one more token for each; return False if llama.cpp fails."""
        missing = {sequence.key: self._missing(sequence, written) for sequence in following}
        while any(missing.values()):
            batch = self.llama.batch
            batch.clear()
            room = self.shape.n_batch
            asked: list[Sequence] = []
            for sequence in following:
                count = min(room, missing[sequence.key])
                if count == 0:
                    continue
                assert sequence.stream is not None
                tokens = written[sequence.key]
                start = len(tokens) - missing[sequence.key]
                is_last = count == missing[sequence.key]
                part = tokens[start : start + count]
                batch.add(part, start=start, stream=sequence.stream, logits=int(is_last))
                self._computed.setdefault(sequence.stream, []).extend(part)
                missing[sequence.key] -= count
                room -= count
                if is_last:
                    asked.append(sequence)
            if self.llama.decode() != 0:
                self._forget(following)
                return False
            if asked:
                for sequence, token in zip(asked, self.llama.most_likely(len(asked)), strict=True):
                    written[sequence.key].append(token)
        return True

    def _missing(self, sequence: Sequence, written: dict[int, list[int]]) -> int:
        """Return how many of its tokens must be computed; what was guessed wrongly is cut first."""
        assert sequence.stream is not None
        tokens = written[sequence.key]
        computed = self._computed.setdefault(sequence.stream, [])
        kept = common_prefix(computed, tokens, len(tokens) - 1)
        if kept < len(computed):
            if not self.llama.trim(sequence.stream, kept):
                kept = 0
            del computed[kept:]
        return len(tokens) - kept

    def _forget(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            if sequence.stream is not None:
                self.llama.forget(sequence.stream)
                self._computed.pop(sequence.stream, None)
