"""A grammar over sampled tokens, awake from the first one or from a trigger on.

llama.cpp's grammar sampler is not used: it follows every reading of a text by itself, which keeps
it busy for ever with some grammars and cannot be interrupted, and it aborts the process on others.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import attrs
import numpy as np

from paddler_trio.language.grammars.gbnf_reader import TokenText
from paddler_trio.language.grammars.pushdown_automaton import (
    PushdownAutomaton,
    Stacks,
    TooManyStacksError,
)
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.sampling.token_trie import TokenTrie, may_complete, read_text
from paddler_trio.wire.engine.engine_pipe import Grammar, Thoughts
from paddler_trio.wire.engine.grammar_rules import GrammarRules

_SEARCHED_CHARS = 4096
"""A trigger is looked for in so much of the newest text."""
_MAX_MASKS = 64
"""Kept for one grammar, a bit for each token."""
_MAX_GRAMMARS = 16
LARGE_PLACES = 50_000
"""A grammar of more takes megabytes, too much to keep it for the next request."""
WORK_FOR_ANSWER = 1_000_000
WORK_PER_TOKEN = 5_000
"""Stacks that may be looked at for one answer, about a second, and more for each of its tokens. A
grammar that is at the limit of one call with every token would slow down all other answers."""


class GrammarInvalidError(Exception):
    """The grammar cannot be read, or it has no such root rule."""


class GrammarRejectedError(Exception):
    """No token of the vocabulary fits the grammar any more, or it goes on in too many ways."""


@attrs.frozen
class _State:
    """A state of the grammar: what may follow a text. ``cut``: the first bytes of a character at
    the end of the text."""

    stacks: Stacks
    cut: bytes = b""


@attrs.define(eq=False, repr=False)
class _TokenGrammar:
    """A grammar over the tokens of a model; shared by all answers that it binds. Hold the
    automaton's lock; TooManyStacksError from everything."""

    automaton: PushdownAutomaton
    trie: TokenTrie
    _ends: frozenset[int]
    _tokens: dict[TokenText, int]
    _classes: tuple[np.ndarray, ...]
    _masks: OrderedDict[_State, np.ndarray] = attrs.field(factory=OrderedDict, init=False)

    def advance(self, state: _State, token: int) -> _State | None:
        """Return the state after a token; None if the token does not fit."""
        automaton, stacks = self.automaton, state.stacks
        if token in self._ends:
            return state if self._may_end(state) else None
        piece = self.trie.pieces[token]
        if not piece:
            return None
        whole = [] if state.cut else self._after_whole_token(stacks, token)
        text, cut = read_text(state.cut + piece) or ("", b"")
        row = automaton.step_text(automaton.row_of(stacks), text)
        after = automaton.stacks_of(row) if text or cut else ()
        if cut and not may_complete(automaton, after, cut):
            after = ()
        if whole:
            return _State(automaton.union_of([*whole, () if cut else after]))
        return _State(after, cut) if after else None

    def mask(self, state: _State) -> np.ndarray:
        """Return whether each token fits: bool, shape (tokens,)."""
        known = self._masks.pop(state, None)
        if known is None:
            new = self._continuing(state) if state.cut else self._beginning(state.stacks)
            new[list(self._ends)] = self._may_end(state)
            known = np.packbits(new)
            while len(self._masks) >= _MAX_MASKS:
                self._masks.popitem(last=False)
        self._masks[state] = known
        fits: np.ndarray = np.unpackbits(known, count=len(self.trie.pieces)).view(bool)
        return fits

    def tidy(self) -> None:
        """Between two pieces of work: keep no more than the next ones are worth."""
        if self.automaton.tidy():
            self._masks.clear()  # their states are equal to none that is made from now on

    def _may_end(self, state: _State) -> bool:
        return not state.cut and self.automaton.may_end(state.stacks)

    def _continuing(self, state: _State) -> np.ndarray:
        fits = np.zeros(len(self.trie.pieces), bool)
        for token in self.trie.continuing:
            fits[token] = self.advance(state, token) is not None
        return fits

    def _beginning(self, stacks: Stacks) -> np.ndarray:
        automaton, trie = self.automaton, self.trie
        rows = trie.rows(automaton, automaton.row_of(stacks), self._classes)
        fits: np.ndarray = rows != 0
        for cut, tokens in trie.cut.items():
            for row in np.unique(rows[tokens]).tolist():
                if not may_complete(automaton, automaton.stacks_of(row), cut):
                    fits[tokens[rows[tokens] == row]] = False
        refused = set()  # a rule may name thousands, and each would be a look at the vocabulary
        for text in automaton.tokens_next(stacks):
            token = self._tokens[text]
            if text.is_negated:
                refused.add(token)
            else:
                fits[token] |= trie.is_text[token]
        if refused:
            others = trie.is_text.copy()
            if len(refused) == 1:  # of several, each takes what the others refuse
                others[list(refused)] = False
            fits |= others
        return fits

    def _after_whole_token(self, stacks: Stacks, token: int) -> list[Stacks]:
        """Return the states after a token that rules name; only tokens that are text can be
        named."""
        if not self._tokens or not self.trie.is_text[token]:
            return []
        return self.automaton.after_whole(
            stacks, lambda text: (self._tokens[text] == token) is not text.is_negated
        )


def _token_grammar(llama: Llama, rules: GrammarRules) -> _TokenGrammar:
    """Raises GrammarInvalidError and TooManyStacksError."""
    automaton = PushdownAutomaton(rules, llama.token_trie.code_points)
    return _TokenGrammar(
        automaton,
        llama.token_trie,
        frozenset(llama.end_tokens),
        {text: _token_of(llama, text.text) for text in automaton.tokens},
        llama.token_trie.classes_in(automaton),
    )


_kept_grammar = lru_cache(maxsize=_MAX_GRAMMARS)(_token_grammar)
"""An application asks for the same form again and again."""


def _token_of(llama: Llama, text: str) -> int:
    """Return the token that ``<[id]>`` or ``<text>`` names."""
    tokens = [int(text[2:-2])] if text.startswith("<[") else llama.tokenize(text)
    if len(tokens) != 1 or tokens[0] >= llama.n_vocab:
        raise GrammarInvalidError(f"the grammar has {text}, which is no token of this model")
    return tokens[0]


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
    _grammar: _TokenGrammar
    _state: _State
    _trigger_tokens: frozenset[int]
    _patterns: tuple[re.Pattern[str], ...]
    is_awake: bool
    _sleep: _Sleep = attrs.field(repr=False)
    _work_left: int = attrs.field(default=WORK_FOR_ANSWER, init=False)
    _looked_at: tuple[int, _State | None] = attrs.field(default=(-1, None), init=False)
    """The last token that was asked about, and the state after it."""

    @classmethod
    def build(cls, llama: Llama, grammar: Grammar) -> Constraint:
        """Build a constraint; raise GrammarInvalidError."""
        try:
            is_large = len(grammar.rules.kinds) > LARGE_PLACES
            compiled = (_token_grammar if is_large else _kept_grammar)(llama, grammar.rules)
            patterns = tuple(re.compile(p, re.DOTALL) for p in grammar.trigger_patterns)
        except TooManyStacksError as error:
            raise GrammarInvalidError(str(error)) from error
        except re.error as error:
            raise GrammarInvalidError(f"a trigger is no regular expression: {error}") from error
        tokens = frozenset(grammar.trigger_tokens)
        start = _State(compiled.automaton.start)
        is_awake = not tokens and not patterns
        return cls(llama, compiled, start, tokens, patterns, is_awake, _Sleep.of(grammar.thoughts))

    def takes(self, token: int) -> bool:
        """Return whether this token may come now; GrammarRejectedError."""
        if self.is_awake:
            self._looked_at = token, self._after([token])
            return self._looked_at[1] is not None
        waking = self._waking(token, self._sleep.after(self._llama.token_bytes(token)))
        return waking is None or self._after(waking) is not None

    def accept(self, token: int) -> None:
        """Note that the token was sampled and fits, or it was forced; GrammarRejectedError."""
        self._work_left = min(WORK_FOR_ANSWER, self._work_left + WORK_PER_TOKEN)
        if self.is_awake:
            known, state = self._looked_at
            self._state = (state if known == token else self._after([token])) or self._state
            self._looked_at = -1, None
            return
        self._sleep = self._sleep.after(self._llama.token_bytes(token))
        waking = self._waking(token, self._sleep)
        if waking is not None:
            self.is_awake = True
            self._state = self._after(waking) or self._state

    def mask(self, rows: np.ndarray) -> None:
        """Set the logit of every token that may not come now to minus infinity.

        Args:
          rows: TOKEN_DATA of all tokens of the vocabulary, in order.

        Raises:
          GrammarRejectedError: the grammar goes on in too many ways.
        """
        with self._working():
            fits = self._grammar.mask(self._state)
        rows["logit"][~fits] = -np.inf

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

    def _after(self, tokens: Sequence[int]) -> _State | None:
        """Return the state after these tokens in a row; None if they do not fit."""
        state: _State | None = self._state
        with self._working():
            for token in tokens:
                if state is None:
                    break
                state = self._grammar.advance(state, token)
        return state

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Use the grammar, within limits; GrammarRejectedError."""
        automaton = self._grammar.automaton
        with automaton.lock:
            automaton.begin()
            try:
                yield
            except TooManyStacksError as error:
                raise GrammarRejectedError(str(error)) from error
            finally:
                self._work_left -= automaton.work
                self._grammar.tidy()
        if self._work_left < 0:
            raise GrammarRejectedError("the grammar went on in too many ways again and again")
