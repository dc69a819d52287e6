"""A grammar over sampled tokens, awake from the first one or from a trigger on.

llguidance follows it: the one token that was sampled is checked, and only if it does not fit is the
whole vocabulary asked. llama.cpp's own grammar sampler is not used: it follows every reading of a
text by itself, which keeps it busy for ever with some grammars and cannot be interrupted, and it
aborts the process on others.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable

import attrs
import numpy as np
from llguidance import LLMatcher

from paddler_trio.language.grammars.conversion import library_limits
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.wire.engine.engine_pipe import Grammar, Thoughts

_SEARCHED_CHARS = 4096
"""A trigger is looked for in so much of the newest text."""
KEPT_CHARS = 4 * 1024 * 1024
"""The size of all grammars that are kept for the next request."""
TIME_FOR_ANSWER_S = 1.0
TIME_PER_TOKEN_S = 0.005
_QUICK_S = 0.0005
"""Processor time that the library may take for one answer, and more for each of its tokens. A
grammar that is at the limit of one call with every token would slow down all other answers."""


class GrammarInvalidError(Exception):
    """The grammar cannot be read."""


class GrammarRejectedError(Exception):
    """No token of the vocabulary fits the grammar any more, or following it takes too much."""


def _compiled(llama: Llama, lark: str) -> LLMatcher:
    """Raises GrammarInvalidError. Other threads run meanwhile."""
    matcher = LLMatcher(
        llama.grammar_tokenizer,
        LLMatcher.grammar_from_lark(lark),
        log_level=0,
        limits=library_limits(),
    )
    if matcher.is_error():
        raise GrammarInvalidError(matcher.get_error().partition("\n")[0])
    return matcher


@attrs.define(eq=False)
class _Kept:
    """The grammars that were asked for last: an application asks for the same form again and again,
    and a session for the same tools."""

    _matchers: OrderedDict[tuple[Llama, str], LLMatcher] = attrs.field(factory=OrderedDict)
    _num_chars: int = 0

    def matcher(self, llama: Llama, lark: str) -> LLMatcher:
        """Return one that has taken nothing yet; GrammarInvalidError."""
        known = self._matchers.pop((llama, lark), None)
        if known is None:
            known = _compiled(llama, lark)
            self._num_chars += len(lark)
        self._matchers[llama, lark] = known
        while self._num_chars > KEPT_CHARS and len(self._matchers) > 1:
            (_, oldest), _ = self._matchers.popitem(last=False)
            self._num_chars -= len(oldest)
        return known.deep_copy()


_KEPT = _Kept()


@attrs.frozen
class _Sleep:
    """The text as a sleeping grammar knows it: whether it is within thoughts, the end of it that
    may begin a mark, and the newest that stands outside of thoughts."""

    thoughts: Thoughts | None
    is_thinking: bool = False
    tail: bytes = b""
    text: bytes = attrs.field(default=b"", repr=False)

    @classmethod
    def of(cls, thoughts: Thoughts | None) -> _Sleep:
        return cls(thoughts, thoughts is not None and thoughts.is_open)

    def after(self, piece: bytes) -> _Sleep:
        """Return the state with the bytes of another token."""
        if self.thoughts is None:
            return attrs.evolve(self, text=(self.text + piece)[-4 * _SEARCHED_CHARS :])
        marks = self.thoughts.open.encode(), self.thoughts.close.encode()
        is_thinking, rest = self.is_thinking, self.tail + piece
        text = b"" if is_thinking else self.text + piece
        while mark := marks[is_thinking]:
            _, found, after = rest.partition(mark)
            if not found:
                break
            is_thinking, rest = not is_thinking, after
            text = b"" if is_thinking else after
        num_kept = max(map(len, marks)) - 1
        tail = rest[-num_kept:] if num_kept else b""
        return _Sleep(self.thoughts, is_thinking, tail, text[-4 * _SEARCHED_CHARS :])


@attrs.define(eq=False)
class Constraint:
    """The grammar of one answer, and how far the answer has come."""

    _llama: Llama = attrs.field(repr=False)
    _matcher: LLMatcher = attrs.field(repr=False)
    _trigger_tokens: frozenset[int]
    _patterns: tuple[re.Pattern[str], ...]
    is_awake: bool
    _sleep: _Sleep = attrs.field(repr=False)
    _time_left_s: float = attrs.field(default=TIME_FOR_ANSWER_S, init=False)
    _clock: Callable[[], float] = attrs.field(default=time.perf_counter, init=False, repr=False)
    """That of the thread, once an operation was not quick: to read it takes as long as one that is.
    """

    @classmethod
    def build(cls, llama: Llama, grammar: Grammar) -> Constraint:
        """Build a constraint; raise GrammarInvalidError."""
        matcher = _KEPT.matcher(llama, grammar.lark)
        try:
            patterns = tuple(re.compile(p, re.DOTALL) for p in grammar.trigger_patterns)
        except re.error as error:
            raise GrammarInvalidError(f"a trigger is no regular expression: {error}") from error
        tokens = frozenset(grammar.trigger_tokens)
        is_awake = not tokens and not patterns
        sleep = _Sleep.of(grammar.thoughts)
        return cls(llama, matcher, tokens, patterns, is_awake, sleep)

    def advance(self, token: int) -> bool:
        """Take the token if it may come now; return whether it did; GrammarRejectedError."""
        if self.is_awake:
            return self._consume([token])
        sleep = self._sleep.after(self._llama.token_bytes(token))
        waking = self._waking(token, sleep)
        if waking is not None:
            if not self._consume(waking):
                return False
            self.is_awake = True
        self._sleep = sleep
        return True

    def force(self, token: int) -> None:
        """Note a token that comes in any case: one that does not fit changes nothing, and wakes
        nothing; GrammarRejectedError."""
        if not self.advance(token) and not self.is_awake:
            self._sleep = attrs.evolve(self._sleep, text=b"")

    def allowed(self) -> np.ndarray:
        """Return the tokens that may come now, in order; GrammarRejectedError."""
        began_s = self._clock()
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._spend(began_s)
        fits = np.unpackbits(bits, bitorder="little", count=self._llama.n_vocab)
        return np.flatnonzero(fits.view(np.bool_))

    def _waking(self, token: int, sleep: _Sleep) -> list[int] | None:
        """Return what the grammar takes first if this token, with which it would sleep like that,
        wakes it, as tokens; None if it sleeps on."""
        if sleep.is_thinking:
            return None
        if token in self._trigger_tokens:
            return [token]
        if not self._patterns:
            return None
        text = sleep.text.decode(errors="ignore")
        for pattern in self._patterns:
            found = pattern.search(text, max(0, len(text) - _SEARCHED_CHARS))
            if found is not None:
                start = found.start(1) if pattern.groups and found.start(1) >= 0 else found.end()
                rest = text[start:]
                return self._llama.tokenize(rest) if rest else []
        return None

    def _consume(self, tokens: list[int]) -> bool:
        """Take tokens if all of them fit in a row; what ends an answer may come again."""
        began_s = self._clock()
        matcher, count = self._matcher, len(tokens)
        if matcher.is_stopped():
            fits = set(tokens) <= set(self._llama.end_tokens)
        elif count == 1:  # nearly always, and asked and taken at once
            fits = matcher.try_consume_tokens(tokens) == 1
        else:
            fits = matcher.validate_tokens(tokens) == count
            if fits:
                matcher.try_consume_tokens(tokens)
        self._spend(began_s)
        if fits:
            self._time_left_s = min(TIME_FOR_ANSWER_S, self._time_left_s + TIME_PER_TOKEN_S)
        return fits

    def _spend(self, began_s: float) -> None:
        """Count the time since then, if it is any; GrammarRejectedError if something is at its
        limit."""
        took_s = self._clock() - began_s
        if took_s > _QUICK_S:
            if self._clock is time.thread_time:
                self._time_left_s -= took_s
            self._clock = time.thread_time
        if self._matcher.is_error():
            raise GrammarRejectedError(self._matcher.get_error().partition("\n")[0])
        if self._time_left_s < 0:
            raise GrammarRejectedError("following the grammar took too long again and again")
