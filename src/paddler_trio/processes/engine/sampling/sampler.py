"""Sampling the next token with llama.cpp's samplers, cheapest path first.

* Greedy without anything that changes logits is an argmax over them.
* Where a few candidates are enough, only those are passed to the samplers.
* Without a grammar, llama.cpp otherwise samples and accepts in one call.
* With a grammar, the token is sampled first and the grammar checks that one token; only when it
  does not fit is another one sampled, of all that do.

A sampled token is a function of the seed and the position: an answer that continues on another
engine gets the tokens that the lost engine would have sampled. So whatever has a random generator
is built anew for each token. Mirostat is the exception: its target depends on all tokens before.
"""

from __future__ import annotations

import codecs
import ctypes
from collections.abc import Sequence

import attrs
import numpy as np

from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.sampling.candidates import candidates_of
from paddler_trio.processes.engine.sampling.constraint import Constraint, GrammarRejectedError
from paddler_trio.processes.engine.sampling.sampler_chain import (
    SamplerChain,
    biases_of,
    is_greedy,
    stages_of,
)
from paddler_trio.processes.engine.sampling.shortlist import (
    Shortlist,
    best_of,
    candidates_needed,
)
from paddler_trio.scheduler.batching.reasoning_limit import ReasoningLimit
from paddler_trio.system.llama_library import lib
from paddler_trio.wire.engine.engine_pipe import Grammar, Logprobs, ReasoningBudget
from paddler_trio.wire.engine.sampler_stages import Sampling

_MAX_WAKING_TRIES = 8


@attrs.define(eq=False)
class Sampler:
    """The sampler of one sequence; owns C memory until :meth:`close`."""

    _llama: Llama
    _sampler: object | None
    _chain: SamplerChain
    _constraint: Constraint | None
    _reasoning: ReasoningLimit | None
    _shortlist: Shortlist | None
    is_plain: bool = attrs.field(kw_only=True)
    """The most likely token is selected: no sampler of llama.cpp has to run."""
    _seed: int = attrs.field(kw_only=True)
    _characters: codecs.IncrementalDecoder = attrs.field(
        factory=lambda: codecs.getincrementaldecoder("utf-8")("ignore"), init=False
    )
    _first_random: int | None = attrs.field(init=False)
    _left: np.ndarray | None = attrs.field(default=None, init=False)
    """The candidates that the chain left when it last selected one, if they are reported."""

    def __attrs_post_init__(self) -> None:
        self._first_random = self._chain.first_random

    @classmethod
    def build(
        cls,
        llama: Llama,
        sampling: Sampling,
        grammar: Grammar | None,
        *,
        cells: int,
        prompt: Sequence[int] = (),
        reasoning: ReasoningBudget | None = None,
    ) -> Sampler:
        """Build a sampler; raise GrammarInvalidError. Touches only the vocabulary: safe beside a
        decode."""
        constraint = None if grammar is None else Constraint.build(llama, grammar)
        limit = None
        if reasoning is not None:
            limit = ReasoningLimit(
                reasoning.max_tokens,
                tuple(reasoning.open),
                tuple(reasoning.close),
                reasoning.is_open,
            )
        chain = SamplerChain.of(llama, sampling, cells=cells)
        needed = candidates_needed(sampling, stages_of(sampling))
        lowered = set(biases_of(llama, sampling))
        sampler = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for link in chain.links:
            lib.llama_sampler_chain_add(sampler, link.sampler)
            seen = chain.seen_by(link, prompt)
            lowered.update(seen)
            for token in seen:
                lib.llama_sampler_accept(link.sampler, token)
        return cls(
            llama,
            sampler,
            chain,
            constraint,
            limit,
            None if needed is None else Shortlist(needed, lowered),
            is_plain=len(chain.links) == 1 and is_greedy(sampling),
            seed=sampling.seed,
        )

    @property
    def is_argmax(self) -> bool:
        """Return whether the most likely token is sampled, whatever it is."""
        return self.is_plain and self._constraint is None and self._reasoning is None

    def sample(self, row: int, *, position: int, likely: int | None = None) -> int:
        """Return the next token from batch row ``row``, to stand at ``position`` of its sequence.

        ``likely``: the most likely one, if it is known already. Raises GrammarRejectedError.
        """
        if self.is_plain and self._reasoning is None:
            return self._most_likely(row, likely)
        self._left = None
        token = None
        if self._reasoning is not None and not self._is_in_character:
            token = self._reasoning.forced()
        if token is not None:
            if self._constraint is not None:
                self._constraint.force(token)
            self._accept(token)
        else:
            self._reseed(position)
            token = self._sampled(row)
        if self._reasoning is not None:
            self._follow(self._reasoning, token)
        return token

    def logprobs(self, token: int, count: int) -> Logprobs | None:
        """Return the token that was just sampled, then the ``count`` most likely ones that the
        chain left, best first, with their natural logarithms; None if the model's own are wanted.
        """
        if not self._chain.sampling.post_sampling_probs:
            return None
        ids, shares = np.array([token]), np.array([1.0])  # certain, where nothing was chosen from
        if self._left is not None:
            likely = self._left[self._left["p"] > 0.0]
            ids, shares = likely["id"], likely["p"]
        places = [*np.flatnonzero(ids == token)[:1], *best_of(shares, count)]
        tokens = ids[places].tolist()
        values = np.log(shares[places].astype(np.float64)).tolist()
        return Logprobs(tokens, [self._llama.token_bytes(each) for each in tokens], values)

    def replay(self, token: int) -> None:
        """Accept a token that another engine sampled; GrammarRejectedError if it does not fit."""
        if self._constraint is not None and not self._constraint.advance(token):
            raise GrammarRejectedError(f"token {token}, sampled elsewhere, does not fit")
        self._accept(token)
        if self._reasoning is not None:
            self._follow(self._reasoning, token)

    def _follow(self, reasoning: ReasoningLimit, token: int) -> None:
        reasoning.sampled(token)
        self._characters.decode(self._llama.token_bytes(token))

    @property
    def _is_in_character(self) -> bool:
        """Return whether the last token ends within a character: no marker can follow it."""
        return bool(self._characters.getstate()[0])

    @property
    def _is_weighed(self) -> bool:
        """Return whether it is reported how likely the chain made each token."""
        sampling = self._chain.sampling
        return sampling.post_sampling_probs and not is_greedy(sampling)

    def close(self) -> None:
        """Free the C samplers; safe to call twice."""
        if self._sampler is not None:
            lib.llama_sampler_free(self._sampler)
        self._sampler = None

    def _most_likely(self, row: int, likely: int | None) -> int:
        if likely is None:
            likely = int(self._llama.logits(row).argmax())
        if self._constraint is None or self._constraint.advance(likely):
            return likely
        return self._fitting(self._constraint, likely, self._llama.logits(row))

    def _sampled(self, row: int) -> int:
        logits = self._llama.logits(row)
        few = None
        if not self.is_plain:
            few = None if self._shortlist is None else self._shortlist.of(logits)
            if few is None and self._constraint is None and not self._is_weighed:
                token = int(lib.llama_sampler_sample(self._sampler, self._llama.context, row))
                self._note(token)
                return token
        token = self._selected(logits, few)
        if self._constraint is not None and not self._constraint.advance(token):
            token = self._fitting(self._constraint, token, logits)
        self._accept(token)
        return token

    def _fitting(self, constraint: Constraint, token: int, logits: np.ndarray) -> int:
        """Return another token than one that does not fit: it has been taken."""
        if constraint.is_awake:
            allowed = constraint.allowed()
            if len(allowed):
                token = self._selected(logits, allowed)
                if constraint.advance(token):
                    return token
        else:
            logits = logits.copy()
            for _ in range(_MAX_WAKING_TRIES):
                logits[token] = -np.inf
                if not np.isfinite(logits).any():
                    break
                token = self._selected(logits)
                if constraint.advance(token):
                    return token
        raise GrammarRejectedError("no token of the vocabulary fits the grammar here")

    def _accept(self, token: int) -> None:
        """Note that the token is the next one, sampled here or elsewhere."""
        if not self.is_plain:
            lib.llama_sampler_accept(self._sampler, token)
            self._note(token)

    def _note(self, token: int) -> None:
        if self._shortlist is not None:
            self._shortlist.lowered.add(token)

    def _selected(self, logits: np.ndarray, tokens: np.ndarray | None = None) -> int:
        """Return what the chain selects from these tokens, or from all."""
        if self.is_plain:
            return int(logits.argmax() if tokens is None else tokens[logits[tokens].argmax()])
        candidates = candidates_of(logits, tokens)
        raw = candidates.raw
        lib.llama_sampler_apply(self._sampler, ctypes.byref(raw))
        assert raw.selected >= 0, "the sampler chain selected nothing"
        if self._is_weighed:
            self._left = candidates.rows[: raw.size].copy()
        return int(candidates.rows["id"][raw.selected])

    def _reseed(self, position: int) -> None:
        """Take off everything from the first random link on and put it back, built anew."""
        first = self._first_random
        if first is None:
            return
        seed = position_seed(self._seed, position)
        links = self._chain.links
        for place in range(len(links) - 1, first - 1, -1):
            lib.llama_sampler_chain_remove(self._sampler, place)
        for link in links[first:]:
            if link.is_random:
                lib.llama_sampler_free(link.sampler)
                link.sampler = self._chain.rebuilt(link, seed)
            lib.llama_sampler_chain_add(self._sampler, link.sampler)


def position_seed(seed: int, position: int) -> int:
    """Return 32 well-mixed bits of both, never llama.cpp's "choose one yourself".

    Source: the finaliser of MurmurHash3 (Appleby, public domain).
    """
    mixed = (seed * 0x9E3779B1 + position * 0x85EBCA77) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    mixed ^= mixed >> 16
    return 0 if mixed == lib.LLAMA_DEFAULT_SEED else mixed
