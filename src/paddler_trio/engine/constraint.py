"""A grammar over sampled tokens, awake from the first one or from a trigger on.

llama.cpp has grammars that sleep, too, but one that wakes in the middle of a token whose rest does
not fit ends the whole process. Here a sleeping grammar is asked before it wakes.
"""

from __future__ import annotations

import ctypes
import re

import attrs
import llama_cpp.llama_cpp as lib
import numpy as np

from paddler_trio.engine.candidates import TOKEN_DATA, candidates_of
from paddler_trio.engine.llama import Llama
from paddler_trio.wire.engine.engine_pipe import Grammar

_SEARCHED_CHARS = 4096
"""A trigger is looked for in so much of the newest text."""


class GrammarInvalidError(Exception):
    """llama.cpp does not accept this grammar, or it has no such root rule."""


class GrammarRejectedError(Exception):
    """No token of the vocabulary fits the grammar any more, or finding one takes too long."""


@attrs.define(eq=False)
class Constraint:
    """One answer's grammar; owns C memory until :meth:`close`."""

    _llama: Llama
    _grammar: object | None
    _trigger_tokens: frozenset[int]
    _patterns: tuple[re.Pattern[str], ...]
    is_awake: bool
    _text: bytes = attrs.field(default=b"", init=False)

    @classmethod
    def build(cls, llama: Llama, grammar: Grammar) -> Constraint:
        """Raises GrammarInvalidError."""
        compiled = lib.llama_sampler_init_grammar(
            llama.vocab, grammar.gbnf.encode(), grammar.root.encode()
        )
        if not compiled:
            raise GrammarInvalidError(
                f"llama.cpp refuses the grammar or finds no rule {grammar.root!r} in it"
            )
        try:
            patterns = tuple(re.compile(p, re.DOTALL) for p in grammar.trigger_patterns)
        except re.error as error:
            lib.llama_sampler_free(compiled)
            raise GrammarInvalidError(f"a trigger is no regular expression: {error}") from error
        tokens = frozenset(grammar.trigger_tokens)
        return cls(llama, compiled, tokens, patterns, not tokens and not patterns)

    def takes(self, token: int) -> bool:
        """Whether this token may come now."""
        if self.is_awake:
            return self._fits([token])
        waking = self._waking(token)
        return waking is None or self._fits(waking)

    def accept(self, token: int) -> None:
        """The token was sampled after :meth:`takes` accepted it, or it was forced."""
        if self.is_awake:
            if self._fits([token]):
                lib.llama_sampler_accept(self._grammar, token)
            return
        waking = self._waking(token)
        self._text = (self._text + self._llama.token_bytes(token))[-4 * _SEARCHED_CHARS :]
        if waking is not None:
            self.is_awake = True
            for piece in waking if self._fits(waking) else []:
                lib.llama_sampler_accept(self._grammar, piece)

    def mask(self, rows: np.ndarray) -> None:
        """Set the logit of every token that may not come now to minus infinity."""
        candidates = candidates_of(rows)
        lib.llama_sampler_apply(self._grammar, ctypes.byref(candidates))

    def close(self) -> None:
        """Free it; safe to say twice."""
        if self._grammar is not None:
            lib.llama_sampler_free(self._grammar)
        self._grammar = None

    def _waking(self, token: int) -> list[int] | None:
        """What the grammar takes first if this token wakes it, as tokens; None if it sleeps on."""
        if token in self._trigger_tokens:
            return [token]
        text = (self._text + self._llama.token_bytes(token)).decode(errors="ignore")
        for pattern in self._patterns:
            found = pattern.search(text, max(0, len(text) - _SEARCHED_CHARS))
            if found is not None:
                start = found.start(1) if pattern.groups and found.start(1) >= 0 else found.end()
                rest = text[start:]
                return self._llama.tokenize(rest) if rest else []
        return None

    def _fits(self, tokens: list[int]) -> bool:
        """Whether the grammar takes these in a row; changes nothing."""
        if len(tokens) == 0:
            return True
        if len(tokens) == 1:
            return self._takes_now(self._grammar, tokens[0])
        trial = lib.llama_sampler_clone(self._grammar)
        try:
            for token in tokens:
                if not self._takes_now(trial, token):
                    return False
                lib.llama_sampler_accept(trial, token)
            return True
        finally:
            lib.llama_sampler_free(trial)

    @staticmethod
    def _takes_now(grammar: object, token: int) -> bool:
        one = np.array([(token, 1.0, 0.0)], TOKEN_DATA)
        candidates = candidates_of(one)
        lib.llama_sampler_apply(grammar, ctypes.byref(candidates))
        return bool(np.isfinite(one["logit"][0]))
