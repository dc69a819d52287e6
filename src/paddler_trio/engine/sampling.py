"""Drawing the next token: llama.cpp's samplers, cheapest path first.

* Greedy without anything that changes logits is an argmax over them.
* Where a few candidates are enough, only those are shown to the samplers.
* Without a grammar, llama.cpp otherwise draws and accepts in one call.
* With a grammar, the token is drawn first and the grammar asked about that one token; the full
  vocabulary is masked only when it says no (W26).

A draw is a function of the seed and the position: an answer that continues on another engine draws
what the lost one would have drawn. Whatever has a generator is therefore made anew for each draw;
mirostat, whose aim depends on all draws before, is the exception.
"""

from __future__ import annotations

import codecs
import ctypes
import time
from collections.abc import Callable, Sequence

import attrs
import llama_cpp.llama_cpp as lib
import numpy as np

from paddler_trio.engine.constraint import Constraint, GrammarRejectedError
from paddler_trio.engine.llama import Llama, candidates_of, token_rows
from paddler_trio.engine.shortlist import Shortlist, candidates_needed
from paddler_trio.scheduler.batching.reasoning_limit import ReasoningLimit
from paddler_trio.wire.engine.engine_pipe import Grammar, ReasoningBudget, Sampling
from paddler_trio.wire.engine.sampling_limits import STAGES

_MIROSTAT_CANDIDATES = 100
_MAX_WAKING_TRIES = 8
MAX_GRAMMAR_CPU_S = 1.0


@attrs.define(eq=False)
class _Stage:
    """A sampler of the chain. ``remake`` makes it anew from a seed, if it draws at random.
    ``sees_prompt``: what it does depends on the prompt, too."""

    sampler: object
    remake: Callable[[int], object] | None = None
    sees_prompt: bool = False


@attrs.define(eq=False)
class Sampler:
    """The sampler of one sequence; owns C memory until :meth:`close`."""

    _llama: Llama
    _chain: object | None
    _stages: list[_Stage]
    _constraint: Constraint | None
    _reasoning: ReasoningLimit | None
    _shortlist: Shortlist | None
    is_argmax: bool = attrs.field(kw_only=True)
    """Nothing but the most likely token is ever drawn: nobody needs to ask."""
    _seed: int = attrs.field(kw_only=True)
    _characters: codecs.IncrementalDecoder = attrs.field(
        factory=lambda: codecs.getincrementaldecoder("utf-8")("ignore"), init=False
    )
    _first_seeded: int | None = attrs.field(init=False)
    """The first stage that draws at random, None if none does."""

    def __attrs_post_init__(self) -> None:
        seeded = (place for place, stage in enumerate(self._stages) if stage.remake is not None)
        self._first_seeded = next(seeded, None)

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
        """Raises GrammarInvalidError. Touches only the vocabulary: safe beside a decode."""
        constraint = None if grammar is None else Constraint.build(llama, grammar)
        limit = None
        if reasoning is not None:
            limit = ReasoningLimit(
                reasoning.max_tokens,
                tuple(reasoning.open),
                tuple(reasoning.close),
                reasoning.is_open,
            )
        stages = _stages(llama, sampling, cells=cells)
        needed = candidates_needed(sampling, tuple(sampling.samplers) or STAGES)
        sees_prompt = any(stage.sees_prompt for stage in stages)
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for stage in stages:
            lib.llama_sampler_chain_add(chain, stage.sampler)
            if stage.sees_prompt:
                for token in prompt:
                    lib.llama_sampler_accept(stage.sampler, token)
        return cls(
            llama,
            chain,
            stages,
            constraint,
            limit,
            None if needed is None else Shortlist(needed, set(prompt if sees_prompt else ())),
            is_argmax=len(stages) == 1
            and _is_greedy(sampling)
            and constraint is None
            and limit is None,
            seed=sampling.seed,
        )

    def draw(self, row: int, *, position: int) -> int:
        """The next token from batch row ``row``, to stand at ``position`` of its sequence.

        Raises GrammarRejectedError.
        """
        if self.is_argmax:
            return int(self._llama.logits(row).argmax())
        token = None
        if self._reasoning is not None and not self._is_in_character:
            token = self._reasoning.forced()
        if token is not None:
            self._accept(token)
        else:
            self._reseed(position)
            token = self._drawn(row) if self._constraint is None else self._sampled_in_time(row)
        if self._reasoning is not None:
            self._follow(self._reasoning, token)
        return token

    def replay(self, token: int) -> None:
        """Take a token that was drawn elsewhere; GrammarRejectedError if it does not fit."""
        if self._constraint is not None and not self._constraint.takes(token):
            raise GrammarRejectedError(f"token {token}, drawn elsewhere, does not fit")
        self._accept(token)
        if self._reasoning is not None:
            self._follow(self._reasoning, token)

    def _follow(self, reasoning: ReasoningLimit, token: int) -> None:
        reasoning.drew(token)
        self._characters.decode(self._llama.token_bytes(token))

    @property
    def _is_in_character(self) -> bool:
        """The last token ends within a character: no marker can follow it."""
        return bool(self._characters.getstate()[0])

    def close(self) -> None:
        """Free the C samplers; safe to say twice."""
        if self._chain is not None:
            lib.llama_sampler_free(self._chain)
        if self._constraint is not None:
            self._constraint.close()
        self._chain = self._constraint = None

    def _sampled_in_time(self, row: int) -> int:
        """As ``_drawn``; a grammar that makes one token dear makes the next one dearer, so this is
        the last one. Processor time of this thread, which others do not lengthen."""
        began_s = time.thread_time()
        token = self._drawn(row)
        if (cpu_s := time.thread_time() - began_s) > MAX_GRAMMAR_CPU_S:
            limit = f"the limit is {MAX_GRAMMAR_CPU_S:g} s: it goes on in too many ways"
            raise GrammarRejectedError(f"the grammar took {cpu_s:.1f} s for one token, {limit}")
        return token

    def _drawn(self, row: int) -> int:
        logits = self._llama.logits(row)
        few = None if self._shortlist is None else self._shortlist.of(logits)
        if few is None and self._constraint is None:
            token = int(lib.llama_sampler_sample(self._chain, self._llama.context, row))
            self._note(token)
            return token
        token = self._selected(token_rows(logits, few))
        if self._constraint is None or self._constraint.takes(token):
            self._accept(token)
            return token
        rows = token_rows(logits)
        tries = 0
        while not self._constraint.takes(token):
            if self._constraint.is_awake:
                self._constraint.mask(rows)
            else:  # it would wake the grammar and not fit it: this one token cannot come here
                rows["logit"][token] = -np.inf
            if tries == _MAX_WAKING_TRIES or not np.isfinite(rows["logit"]).any():
                raise GrammarRejectedError("no token of the vocabulary fits the grammar here")
            tries += 1
            token = self._selected(rows.copy())
        self._accept(token)
        return token

    def _accept(self, token: int) -> None:
        """The token is the next one, wherever it came from."""
        if self._constraint is not None:
            self._constraint.accept(token)
        lib.llama_sampler_accept(self._chain, token)
        self._note(token)

    def _note(self, token: int) -> None:
        if self._shortlist is not None:
            self._shortlist.lowered.add(token)

    def _selected(self, rows: np.ndarray) -> int:
        candidates = candidates_of(rows)
        lib.llama_sampler_apply(self._chain, ctypes.byref(candidates))
        assert candidates.selected >= 0, "the sampler chain selected nothing"
        return int(candidates.data[candidates.selected].id)

    def _reseed(self, position: int) -> None:
        """Everything from the first random stage on is taken off and put back, renewed."""
        first = self._first_seeded
        if first is None:
            return
        seed = position_seed(self._seed, position)
        for place in range(len(self._stages) - 1, first - 1, -1):
            lib.llama_sampler_chain_remove(self._chain, place)
        for stage in self._stages[first:]:
            if stage.remake is not None:
                lib.llama_sampler_free(stage.sampler)
                stage.sampler = stage.remake(seed)
            lib.llama_sampler_chain_add(self._chain, stage.sampler)


def _is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature <= 0 or (sampling.top_k == 1 and not sampling.mirostat)


def _stages(llama: Llama, sampling: Sampling, *, cells: int) -> list[_Stage]:
    """The samplers of a chain, in order; the last one selects."""
    stages = _bias(llama, sampling)
    names = tuple(sampling.samplers) or STAGES
    if _is_greedy(sampling):
        for name in names:
            if name in ("penalties", "dry"):
                stages += _stage(llama, sampling, name, cells)
        return [*stages, _Stage(lib.llama_sampler_init_greedy())]
    if sampling.mirostat:
        for name in ("penalties", "dry", "temperature"):
            stages += _stage(llama, sampling, name, cells)
        tau, eta = sampling.mirostat_tau, sampling.mirostat_eta
        if sampling.mirostat == 1:
            last = lib.llama_sampler_init_mirostat(
                llama.n_vocab, sampling.seed, tau, eta, _MIROSTAT_CANDIDATES
            )
        else:
            last = lib.llama_sampler_init_mirostat_v2(sampling.seed, tau, eta)
        return [*stages, _Stage(last)]
    for name in names:
        stages += _stage(llama, sampling, name, cells)
    return [*stages, _Stage(lib.llama_sampler_init_dist(0), lib.llama_sampler_init_dist)]


def _bias(llama: Llama, sampling: Sampling) -> list[_Stage]:
    biases = dict(sampling.logit_bias)
    if sampling.ignore_eos:
        biases |= dict.fromkeys(llama.end_tokens, float("-inf"))
    if not biases:
        return []
    array = (lib.llama_logit_bias * len(biases))()
    for entry, (token, bias) in zip(array, biases.items(), strict=True):
        entry.token, entry.bias = token, bias
    return [_Stage(lib.llama_sampler_init_logit_bias(llama.n_vocab, len(biases), array))]


def _stage(llama: Llama, sampling: Sampling, name: str, cells: int) -> list[_Stage]:
    """The stage of this name, or none if it would change nothing."""
    s, keep = sampling, sampling.min_keep
    made: object | None = None
    sees_prompt = name == "dry" or (name == "penalties" and s.penalize_prompt)
    match name:
        case "penalties" if s.penalty_last_n != 0 and (
            s.penalty_repeat != 1.0 or s.penalty_frequency != 0.0 or s.penalty_presence != 0.0
        ):
            made = lib.llama_sampler_init_penalties(
                llama.n_vocab,
                _window(s.penalty_last_n, cells),
                s.penalty_repeat,
                s.penalty_frequency,
                s.penalty_presence,
            )
        case "dry" if s.dry_multiplier != 0.0 and s.dry_base >= 1.0 and s.dry_penalty_last_n != 0:
            breakers = [text.encode() for text in s.dry_sequence_breakers]
            made = lib.llama_sampler_init_dry(
                llama.vocab,
                s.dry_multiplier,
                s.dry_base,
                s.dry_allowed_length,
                _window(s.dry_penalty_last_n, cells),
                (ctypes.c_char_p * len(breakers))(*breakers),
                len(breakers),
            )
        case "top_n_sigma" if s.top_n_sigma > 0:
            made = lib.llama_sampler_init_top_n_sigma(s.top_n_sigma)
        case "top_k" if s.top_k > 0:
            made = lib.llama_sampler_init_top_k(s.top_k)
        case "typ_p" if s.typical_p < 1.0:
            made = lib.llama_sampler_init_typical(s.typical_p, max(1, keep))
        case "top_p" if s.top_p < 1.0:
            made = lib.llama_sampler_init_top_p(s.top_p, max(1, keep))
        case "min_p" if s.min_p > 0.0:
            made = lib.llama_sampler_init_min_p(s.min_p, max(1, keep))
        case "xtc" if s.xtc_probability > 0.0 and s.xtc_threshold <= 0.5:

            def remake(seed: int) -> object:
                return lib.llama_sampler_init_xtc(
                    s.xtc_probability, s.xtc_threshold, max(1, keep), seed
                )

            return [_Stage(remake(0), remake)]
        case "temperature" if s.dynatemp_range > 0.0:
            made = lib.llama_sampler_init_temp_ext(
                s.temperature, s.dynatemp_range, s.dynatemp_exponent
            )
        case "temperature" if s.temperature != 1.0:
            made = lib.llama_sampler_init_temp(s.temperature)
    return [] if made is None else [_Stage(made, sees_prompt=sees_prompt)]


def _window(last_n: int, cells: int) -> int:
    """How far a penalty looks back. llama.cpp makes memory of this number before any token is there
    to look at, and takes a negative one for "off"; Paddler's -1 means all of the context (W6)."""
    return cells if last_n < 0 else min(last_n, cells)


def position_seed(seed: int, position: int) -> int:
    """32 well-mixed bits of both, never llama.cpp's "choose one yourself".

    Source: the finaliser of MurmurHash3 (Appleby, public domain).
    """
    mixed = (seed * 0x9E3779B1 + position * 0x85EBCA77) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    mixed ^= mixed >> 16
    return 0 if mixed == lib.LLAMA_DEFAULT_SEED else mixed
