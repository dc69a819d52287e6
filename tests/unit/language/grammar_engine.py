"""llama.cpp's grammar sampler and ours, asked token by token about texts of the demo vocabulary."""

from __future__ import annotations

import codecs
import ctypes
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import attrs
import llama_cpp.llama_cpp as lib
import numpy as np

from paddler_trio.language.grammars.gbnf_compilation import AnswerGrammar
from paddler_trio.language.grammars.gbnf_conversion import inspect_gbnf
from paddler_trio.language.grammars.gbnf_writer import GrammarError
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.sampling.constraint import Constraint, GrammarInvalidError

_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


@attrs.frozen(eq=False)
class _Table:
    """What is asked of every token, once a vocabulary."""

    pieces: list[bytes]
    rows: np.ndarray
    ends: np.ndarray
    closes: np.ndarray


@lru_cache(maxsize=4)
def _table_of(vocabulary: Vocabulary) -> _Table:
    tokens = range(vocabulary.n_tokens)
    pieces = [vocabulary.token_bytes(token, special=True) for token in tokens]
    rows = np.zeros(len(pieces), _TOKEN_DATA)
    rows["id"] = np.arange(len(pieces), dtype=np.int32)
    return _Table(
        pieces,
        rows,
        np.array([vocabulary.is_end_of_generation(token) for token in tokens]),
        np.array([piece[:1] in (b'"', b"}", b"]", b",") for piece in pieces]),
    )


class GrammarEngine:
    """One grammar, made anew for every text. Both samplers have to agree about it."""

    def __init__(self, vocabulary: Vocabulary, handle: object, gbnf: str, root: str) -> None:
        self._vocabulary = vocabulary
        self._handle = handle
        self._ours = AnswerGrammar(gbnf, root).compiled()
        self._gbnf = gbnf.encode()
        self._root = root.encode()
        self._eos = vocabulary.eos_token
        assert self._eos is not None

    def accepts(self, text: str) -> bool:
        """Whether the whole text fits and the answer may end after it."""
        tokens = self._vocabulary.tokenize(text, add_special=False, parse_special=True)
        tokens.append(self._eos)
        constraint = Constraint.build(llama_of(self._vocabulary), self._ours)
        with self._sampler() as sampler:
            for token in tokens:
                fits = _takes(sampler, token)
                assert constraint.takes(token) is fits, f"llama.cpp: {fits} for {token} of {text!r}"
                if not fits:
                    return False
                lib.llama_sampler_accept(sampler, token)
                constraint.accept(token)
        return True

    def random_text(
        self, dice: random.Random, max_tokens: int = 200, *, closers: Sequence[str] = ()
    ) -> str | None:
        """A text drawn under the mask, ending when it may; None if it was still open.

        ``closers``: long texts that end something, which chance alone would hardly ever write.
        """
        table = _table_of(self._vocabulary)
        sampled = b""
        utf8 = codecs.getincrementaldecoder("utf-8")()
        with self._sampler() as sampler:
            for count in range(max_tokens):
                rows = table.rows.copy()
                _apply(sampler, rows)
                is_allowed = np.isfinite(rows["logit"])
                may_end = bool((is_allowed & table.ends).any())
                is_allowed &= ~table.ends
                assert may_end or is_allowed.any(), f"no token fits after {sampled!r}"
                if may_end and (not is_allowed.any() or dice.random() < 0.2 + count / max_tokens):
                    return sampled.decode()
                closer = dice.choice(closers) if closers and dice.random() < 0.4 else ""
                if closer and not utf8.getstate()[0] and self._write(sampler, closer):
                    sampled += closer.encode()
                    continue
                # What closes something is preferred more and more, or most texts would not end.
                closing = is_allowed & table.closes
                wants_end = closing.any() and dice.random() < 0.3 + count / max_tokens
                token = self._choice(
                    np.flatnonzero(closing if wants_end else is_allowed), utf8, dice
                )
                if token is None:
                    return None
                sampled += table.pieces[token]
                utf8.decode(table.pieces[token])
                lib.llama_sampler_accept(sampler, token)
        return None

    def _choice(
        self, tokens: np.ndarray, utf8: codecs.IncrementalDecoder, dice: random.Random
    ) -> int | None:
        """One of these tokens; llama.cpp takes overlong bytes for letters, no model writes them."""
        pieces = _table_of(self._vocabulary).pieces
        state = utf8.getstate()
        for _ in range(40):
            token = int(dice.choice(tokens))
            try:
                utf8.decode(pieces[token])
            except UnicodeDecodeError:
                continue
            finally:
                utf8.setstate(state)
            return token
        return None

    def _write(self, sampler: object, text: str) -> bool:
        """Let the grammar take all of this text, or nothing of it."""
        tokens = self._vocabulary.tokenize(text, add_special=False, parse_special=True)
        trial = lib.llama_sampler_clone(sampler)
        try:
            for token in tokens:
                if not _takes(trial, token):
                    return False
                lib.llama_sampler_accept(trial, token)
        finally:
            lib.llama_sampler_free(trial)
        for token in tokens:
            lib.llama_sampler_accept(sampler, token)
        return True

    @contextmanager
    def _sampler(self) -> Iterator[object]:
        sampler = lib.llama_sampler_init_grammar(self._handle, self._gbnf, self._root)
        assert sampler, f"llama.cpp refuses:\n{self._gbnf.decode()}"
        try:
            yield sampler
        finally:
            lib.llama_sampler_free(sampler)


@lru_cache(maxsize=4)
def llama_of(vocabulary: Vocabulary) -> Llama:
    """The engine's view of a vocabulary, without weights."""
    return Llama(vocabulary._model)


def check_gbnf(vocabulary: Vocabulary, grammar: str, root: str) -> bool:
    """Whether we accept a grammar; llama.cpp has to accept it then, too."""
    try:
        inspect_gbnf(grammar, root)
        Constraint.build(llama_of(vocabulary), AnswerGrammar(grammar, root).compiled())
    except (GrammarError, GrammarInvalidError):
        return False
    assert is_read_by_llama_cpp(vocabulary, grammar, root), f"llama.cpp refuses:\n{grammar}"
    return True


def is_read_by_llama_cpp(vocabulary: Vocabulary, grammar: str, root: str) -> bool:
    with vocabulary.open_handle() as handle:
        sampler = lib.llama_sampler_init_grammar(handle, grammar.encode(), root.encode())
        if sampler:
            lib.llama_sampler_free(sampler)
        return bool(sampler)


@contextmanager
def open_engine(vocabulary: Vocabulary, gbnf: str, root: str = "root") -> Iterator[GrammarEngine]:
    with vocabulary.open_handle() as handle:
        yield GrammarEngine(vocabulary, handle, gbnf, root)


def _takes(sampler: object, token: int) -> bool:
    one = np.array([(token, 1.0, 0.0)], _TOKEN_DATA)
    _apply(sampler, one)
    return bool(np.isfinite(one["logit"][0]))


def _apply(sampler: object, rows: np.ndarray) -> None:
    candidates = lib.llama_token_data_array(
        data=rows.ctypes.data_as(lib.llama_token_data_p),
        size=len(rows),
        selected=-1,
        sorted=False,
    )
    lib.llama_sampler_apply(sampler, ctypes.byref(candidates))
