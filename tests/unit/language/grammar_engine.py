"""A grammar as the engine follows it, asked about texts of the demo vocabulary token by token."""

from __future__ import annotations

import codecs
import ctypes
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import attrs
import llama_cpp.llama_cpp as lib
import numpy as np

from paddler_trio.language.grammars.conversion import AnswerGrammar, write_schema
from paddler_trio.language.grammars.gbnf import write_gbnf
from paddler_trio.language.grammars.lark import GrammarError
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.sampling.candidates import Candidates
from paddler_trio.processes.engine.sampling.constraint import Constraint, GrammarInvalidError
from paddler_trio.wire.engine.engine_pipe import Grammar
from written_grammars import written


@attrs.frozen(eq=False)
class _Table:
    """What is asked of every token, once a vocabulary."""

    pieces: list[bytes]
    ends: np.ndarray
    closes: np.ndarray


@lru_cache(maxsize=4)
def _table_of(vocabulary: Vocabulary) -> _Table:
    tokens = range(vocabulary.n_tokens)
    pieces = [vocabulary.token_bytes(token, special=True) for token in tokens]
    return _Table(
        pieces,
        np.array([vocabulary.is_end_of_generation(token) for token in tokens]),
        np.array([piece[:1] in (b'"', b"}", b"]", b",") for piece in pieces]),
    )


class GrammarEngine:
    """One grammar, followed anew for every text."""

    def __init__(self, vocabulary: Vocabulary, grammar: Grammar) -> None:
        self._vocabulary = vocabulary
        self._grammar = grammar
        eos = vocabulary.eos_token
        assert eos is not None
        self._eos = eos

    def accepts(self, text: str) -> bool:
        """Whether the whole text fits and the answer may end after it."""
        tokens = self._vocabulary.tokenize(text, add_special=False, parse_special=True)
        return self.num_taken([*tokens, self._eos]) == len(tokens) + 1

    def num_taken(self, tokens: Sequence[int]) -> int:
        """How many of these tokens fit in a row; each is asked about alone and among all."""
        constraint = self._constraint()
        for place, token in enumerate(tokens):
            allowed = constraint.allowed()
            fits = constraint.advance(token)
            assert fits is (token in allowed), f"token {token}, number {place}"
            if not fits:
                return place
        return len(tokens)

    def random_text(
        self, dice: random.Random, max_tokens: int = 200, *, closers: Sequence[str] = ()
    ) -> str | None:
        """A text drawn under the mask, ending when it may; None if it was still open.

        ``closers``: long texts that end something, which chance alone would hardly ever write.
        """
        table = _table_of(self._vocabulary)
        sampled = b""
        utf8 = codecs.getincrementaldecoder("utf-8")()
        constraint = self._constraint()
        for count in range(max_tokens):
            is_allowed = np.zeros(len(table.pieces), bool)
            is_allowed[constraint.allowed()] = True
            may_end = bool((is_allowed & table.ends).any())
            is_allowed &= ~table.ends
            assert may_end or is_allowed.any(), f"no token fits after {sampled!r}"
            if may_end and (not is_allowed.any() or dice.random() < 0.2 + count / max_tokens):
                return sampled.decode()
            closer = dice.choice(closers) if closers and dice.random() < 0.4 else ""
            if closer and not utf8.getstate()[0] and self._write(constraint, closer):
                sampled += closer.encode()
                continue
            # What closes something is preferred more and more, or most texts would not end.
            closing = is_allowed & table.closes
            wants_end = closing.any() and dice.random() < 0.3 + count / max_tokens
            token = int(dice.choice(np.flatnonzero(closing if wants_end else is_allowed)))
            sampled += table.pieces[token]
            utf8.decode(table.pieces[token])
            assert constraint.advance(token)
        return None

    def _constraint(self) -> Constraint:
        awake = attrs.evolve(self._grammar, trigger_tokens=[], trigger_patterns=[])
        return Constraint.build(llama_of(self._vocabulary), awake)

    def _write(self, constraint: Constraint, text: str) -> bool:
        """Let the grammar take all of this text, or nothing of it."""
        tokens = self._vocabulary.tokenize(text, add_special=False, parse_special=True)
        if constraint._matcher.validate_tokens(tokens) < len(tokens):
            return False
        for token in tokens:
            assert constraint.advance(token)
        return True


class LlamaCppGrammar:
    """llama.cpp's own sampler for a grammar, for the same questions."""

    def __init__(self, vocabulary: Vocabulary, handle: object, gbnf: str, root: str) -> None:
        self._sampler = lib.llama_sampler_init_grammar(handle, gbnf.encode(), root.encode())
        self.is_read = bool(self._sampler)

    def takes(self, token: int) -> bool:
        one = Candidates(1)
        one.fill(np.array([token]), np.array([1.0]))
        lib.llama_sampler_apply(self._sampler, ctypes.byref(one.raw))
        return bool(np.isfinite(one.rows["logit"][0]))

    def num_taken(self, tokens: Sequence[int]) -> int:
        """How many of these tokens fit in a row."""
        for place, token in enumerate(tokens):
            if not self.takes(token):
                return place
            lib.llama_sampler_accept(self._sampler, token)
        return len(tokens)

    def close(self) -> None:
        if self._sampler:
            lib.llama_sampler_free(self._sampler)


@lru_cache(maxsize=4)
def llama_of(vocabulary: Vocabulary) -> Llama:
    """The engine's view of a vocabulary, without weights."""
    return Llama(vocabulary._model)


def schema_grammar(schema: object, *, is_lenient: bool = False) -> AnswerGrammar:
    return written(lambda writer: write_schema(schema, writer, is_lenient=is_lenient))


def gbnf_grammar(vocabulary: Vocabulary, gbnf: str, root: str = "root") -> AnswerGrammar:
    return written(
        lambda writer: write_gbnf(gbnf, root, writer, token_of(vocabulary), vocabulary.end_tokens)
    )


def token_of(vocabulary: Vocabulary) -> Callable[[str], int | None]:
    def find(text: str) -> int | None:
        tokens = vocabulary.tokenize(text, add_special=False, parse_special=True)
        return tokens[0] if len(tokens) == 1 else None

    return find


def is_read_here(vocabulary: Vocabulary, gbnf: str, root: str) -> bool:
    try:
        Constraint.build(llama_of(vocabulary), gbnf_grammar(vocabulary, gbnf, root).compiled())
    except (GrammarError, GrammarInvalidError):
        return False
    return True


@contextmanager
def llama_cpp_grammar(
    vocabulary: Vocabulary, gbnf: str, root: str = "root"
) -> Iterator[LlamaCppGrammar]:
    with vocabulary.open_handle() as handle:
        grammar = LlamaCppGrammar(vocabulary, handle, gbnf, root)
        try:
            yield grammar
        finally:
            grammar.close()


def engine_of(vocabulary: Vocabulary, grammar: AnswerGrammar) -> GrammarEngine:
    return GrammarEngine(vocabulary, grammar.compiled())
