"""Drawing the next token: llama.cpp's samplers, cheapest path first.

* Greedy without penalties or grammar is an argmax over the logits.
* Without a grammar, llama.cpp draws and accepts in one call.
* With a grammar, the token is drawn first and the grammar asked about that one token; the full
  vocabulary is masked only when it says no (W26).

A draw is a function of the seed and the position: an answer that continues on another engine draws
what the lost one would have drawn. llama.cpp's generator is therefore made anew for each draw.
"""

from __future__ import annotations

import ctypes

import attrs
import llama_cpp.llama_cpp as lib
import numpy as np

from paddler_trio.engine.llama import Llama
from paddler_trio.wire.engine_pipe import Grammar, Sampling

_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class GrammarInvalidError(Exception):
    """llama.cpp does not accept this grammar, or it has no such root rule."""


class GrammarRejectedError(Exception):
    """No token of the vocabulary fits the grammar any more."""


@attrs.define
class Sampler:
    """The sampler of one sequence; owns C memory until :meth:`close`."""

    _llama: Llama
    _chain: object | None
    _grammar: object | None
    is_argmax: bool = attrs.field(kw_only=True)
    """Nothing but the most likely token is ever drawn: nobody needs to ask."""
    _seed: int | None = attrs.field(kw_only=True)
    """None when nothing is drawn at random."""
    _rows: np.ndarray = attrs.field(kw_only=True)
    """Scratch of shape (n_vocab,) for candidate tokens; only used with a grammar."""

    @classmethod
    def build(
        cls, llama: Llama, sampling: Sampling, grammar: Grammar | None, *, cells: int
    ) -> Sampler:
        """Raises GrammarInvalidError. Touches only the vocabulary: safe beside a decode."""
        compiled = None
        if grammar is not None:
            compiled = lib.llama_sampler_init_grammar(
                llama.vocab, grammar.gbnf.encode(), grammar.root.encode()
            )
            if not compiled:
                raise GrammarInvalidError(
                    f"llama.cpp refuses the grammar or finds no rule {grammar.root!r} in it"
                )
        penalises = sampling.penalty_last_n != 0 and (
            sampling.penalty_repeat != 1.0
            or sampling.penalty_frequency != 0.0
            or sampling.penalty_presence != 0.0
        )
        is_greedy = sampling.temperature <= 0 or sampling.top_k == 1
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        if penalises:
            # llama.cpp takes a negative window for "off"; Paddler's -1 means all of it (W6)
            window = cells if sampling.penalty_last_n < 0 else sampling.penalty_last_n
            lib.llama_sampler_chain_add(
                chain,
                lib.llama_sampler_init_penalties(
                    llama.n_vocab,
                    window,
                    sampling.penalty_repeat,
                    sampling.penalty_frequency,
                    sampling.penalty_presence,
                ),
            )
        if is_greedy:
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_greedy())
        else:
            for stage in (
                lib.llama_sampler_init_top_k(sampling.top_k),
                lib.llama_sampler_init_top_p(sampling.top_p, 1),
                lib.llama_sampler_init_min_p(sampling.min_p, 1),
                lib.llama_sampler_init_temp(sampling.temperature),
                lib.llama_sampler_init_dist(0),  # the one that draw() replaces
            ):
                lib.llama_sampler_chain_add(chain, stage)
        return cls(
            llama,
            chain,
            compiled,
            is_argmax=is_greedy and not penalises and compiled is None,
            seed=None if is_greedy else sampling.seed,
            rows=np.empty(llama.n_vocab if compiled else 0, _TOKEN_DATA),
        )

    def draw(self, row: int, *, position: int) -> int:
        """The next token from batch row ``row``, to stand at ``position`` of its sequence.

        Raises GrammarRejectedError.
        """
        if self.is_argmax:
            return int(self._llama.logits(row).argmax())
        if self._seed is not None:
            self._reseed(self._seed, position)
        if self._grammar is None:
            return int(lib.llama_sampler_sample(self._chain, self._llama.context, row))
        token = self._drawn_from(row, masked=False)
        if not self._grammar_takes(token):
            token = self._drawn_from(row, masked=True)
            if not self._grammar_takes(token):
                raise GrammarRejectedError("no token of the vocabulary fits the grammar here")
        lib.llama_sampler_accept(self._grammar, token)
        lib.llama_sampler_accept(self._chain, token)
        return token

    def replay(self, token: int) -> None:
        """Take a token that was drawn elsewhere; GrammarRejectedError if it does not fit."""
        if self._grammar is not None:
            if not self._grammar_takes(token):
                raise GrammarRejectedError(f"token {token}, drawn elsewhere, does not fit")
            lib.llama_sampler_accept(self._grammar, token)
        lib.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        """Free the C samplers; safe to say twice."""
        for sampler in (self._chain, self._grammar):
            if sampler is not None:
                lib.llama_sampler_free(sampler)
        self._chain = self._grammar = None

    def _reseed(self, seed: int, position: int) -> None:
        last = lib.llama_sampler_chain_n(self._chain) - 1
        lib.llama_sampler_free(lib.llama_sampler_chain_remove(self._chain, last))
        lib.llama_sampler_chain_add(
            self._chain, lib.llama_sampler_init_dist(position_seed(seed, position))
        )

    def _drawn_from(self, row: int, *, masked: bool) -> int:
        rows = self._rows
        rows["id"] = np.arange(len(rows), dtype=np.int32)
        rows["logit"] = self._llama.logits(row)
        rows["p"] = 0.0
        candidates = _candidates(rows)
        if masked:
            lib.llama_sampler_apply(self._grammar, ctypes.byref(candidates))
        lib.llama_sampler_apply(self._chain, ctypes.byref(candidates))
        assert candidates.selected >= 0, "the sampler chain selected nothing"
        return int(candidates.data[candidates.selected].id)

    def _grammar_takes(self, token: int) -> bool:
        one = np.array([(token, 1.0, 0.0)], _TOKEN_DATA)
        candidates = _candidates(one)
        lib.llama_sampler_apply(self._grammar, ctypes.byref(candidates))
        return bool(np.isfinite(one["logit"][0]))


def position_seed(seed: int, position: int) -> int:
    """32 well-mixed bits of both, never llama.cpp's "choose one yourself".

    Source: the finaliser of MurmurHash3 (Appleby, public domain).
    """
    mixed = (seed * 0x9E3779B1 + position * 0x85EBCA77) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    mixed ^= mixed >> 16
    return 0 if mixed == lib.LLAMA_DEFAULT_SEED else mixed


def _candidates(rows: np.ndarray) -> lib.llama_token_data_array:
    return lib.llama_token_data_array(
        data=rows.ctypes.data_as(lib.llama_token_data_p),
        size=len(rows),
        selected=-1,
        sorted=False,
    )
