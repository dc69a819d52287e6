"""llama.cpp's samplers of one sequence, built from the table of stages."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import attrs

from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.system.llama_library import lib as llama_lib
from paddler_trio.wire.engine.sampler_stages import (
    STAGES,
    USUAL_STAGES,
    SamplerStage,
    Sampling,
)

_MIROSTAT_CANDIDATES = 100
_BESIDE_MIROSTAT = ("penalties", "dry", "temperature")


@attrs.define(eq=False)
class ChainLink:
    """A sampler of the chain; owns C memory until it is in one.

    ``stage`` is the table's, None for logit biases and for the sampler at the end. A link that is
    ``is_random`` is built anew for every sampled token.
    """

    sampler: object
    stage: SamplerStage | None = None
    sees_prompt: bool = False
    is_random: bool = False


@attrs.define
class _Factory:
    """See :class:`~paddler_trio.wire.engine.sampler_stages.SamplerFactory`."""

    n_vocab: int
    vocab: object
    cells: int
    seed: int = 0
    lib: Any = llama_lib

    def window(self, last_n: int) -> int:
        """Return the tokens that a penalty looks back at. llama.cpp allocates this number before
        there is a token to look at, and takes a negative one for "off"; Paddler's -1 means all of
        the context."""
        return self.cells if last_n < 0 else min(last_n, self.cells)

    def texts(self, texts: Sequence[str]) -> object:
        return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


@attrs.define(eq=False)
class SamplerChain:
    """The chain that one sequence is sampled with, in order; the last link selects."""

    sampling: Sampling
    links: list[ChainLink]
    _factory: _Factory

    @classmethod
    def of(cls, llama: Llama, sampling: Sampling, *, cells: int) -> SamplerChain:
        """Build a chain; ``cells`` are those of one sequence, which limit how far penalties look
        back."""
        factory = _Factory(llama.n_vocab, llama.vocab, cells)
        links = _biases(llama, sampling)
        stages = stages_of(sampling)
        if is_greedy(sampling):
            stages = [stage for stage in stages if stage.only_lowers]
            last = ChainLink(llama_lib.llama_sampler_init_greedy())
        elif sampling.mirostat:
            stages = [STAGES[name] for name in _BESIDE_MIROSTAT]
            last = ChainLink(_mirostat(llama, sampling))
        elif selecting := [each for each in stages if each.selects and each.is_on(sampling)]:
            factory.seed = sampling.seed
            last = ChainLink(selecting[0].build(sampling, factory))
        else:
            last = ChainLink(llama_lib.llama_sampler_init_dist(0), is_random=True)
        for stage in stages:
            if stage.is_on(sampling) and not stage.selects:
                sees_prompt = stage.name == "dry" or (
                    stage.name == "penalties" and sampling.penalize_prompt
                )
                sampler = _built(llama, stage, sampling, factory)
                links.append(ChainLink(sampler, stage, sees_prompt, stage.is_random))
        return cls(sampling, [*links, last], factory)

    @property
    def first_random(self) -> int | None:
        """The place of the first link that samples at random; None if none does."""
        return next((place for place, link in enumerate(self.links) if link.is_random), None)

    def seen_by(self, link: ChainLink, prompt: Sequence[int]) -> Sequence[int]:
        """The tokens of ``prompt`` that the link looks back at: as many as its window holds."""
        if not link.sees_prompt:
            return ()
        assert link.stage is not None
        is_dry = link.stage.name == "dry"
        last_n = self.sampling.dry_penalty_last_n if is_dry else self.sampling.penalty_last_n
        window = self._factory.window(last_n)
        return prompt[-window:] if window else ()

    def rebuilt(self, link: ChainLink, seed: int) -> object:
        """Return the sampler of a random link, made anew from ``seed``."""
        if link.stage is None:
            return llama_lib.llama_sampler_init_dist(seed)
        self._factory.seed = seed
        return link.stage.build(self.sampling, self._factory)


def _built(llama: Llama, stage: SamplerStage, sampling: Sampling, factory: _Factory) -> object:
    if not stage.is_slow_to_build:
        return stage.build(sampling, factory)
    parameters = tuple(getattr(sampling, parameter.name) for parameter in stage.parameters)
    return llama.sampler_prototypes.copy(
        (stage.name, parameters, tuple(sampling.dry_sequence_breakers), factory.cells),
        lambda: stage.build(sampling, factory),
    )


def stages_of(sampling: Sampling) -> list[SamplerStage]:
    """Return the stages that a request names, or the usual ones in llama.cpp's order."""
    return [STAGES[name] for name in sampling.samplers or USUAL_STAGES]


def is_greedy(sampling: Sampling) -> bool:
    """Return whether only the most likely token can be sampled."""
    return sampling.temperature <= 0 or (sampling.top_k == 1 and not sampling.mirostat)


def _mirostat(llama: Llama, sampling: Sampling) -> object:
    tau, eta = sampling.mirostat_tau, sampling.mirostat_eta
    if sampling.mirostat == 1:
        return llama_lib.llama_sampler_init_mirostat(
            llama.n_vocab, sampling.seed, tau, eta, _MIROSTAT_CANDIDATES
        )
    return llama_lib.llama_sampler_init_mirostat_v2(sampling.seed, tau, eta)


def biases_of(llama: Llama, sampling: Sampling) -> dict[int, float]:
    """Return what is added to the logits of some tokens in any case."""
    biases = dict(sampling.logit_bias)
    biases |= dict.fromkeys(llama.suppressed_tokens, float("-inf"))
    if sampling.ignore_eos:
        biases |= dict.fromkeys(llama.end_tokens, float("-inf"))
    return biases


def _biases(llama: Llama, sampling: Sampling) -> list[ChainLink]:
    biases = biases_of(llama, sampling)
    if not biases:
        return []
    array = (llama_lib.llama_logit_bias * len(biases))()
    for entry, (token, bias) in zip(array, biases.items(), strict=True):
        entry.token, entry.bias = token, bias
    return [ChainLink(llama_lib.llama_sampler_init_logit_bias(llama.n_vocab, len(biases), array))]
