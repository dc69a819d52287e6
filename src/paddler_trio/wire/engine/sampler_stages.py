"""The table of sampler stages: names, parameters, defaults, ranges, and how llama.cpp builds each.

Everything about a stage or one of its parameters is read from here: the usual order of a chain,
the defaults of :class:`Sampling`, the ranges that requests are checked against, llama-server's
names and letters, and the engine's constructors. A new stage is one entry, and a field of the same
name in ``Sampling`` and in ``SamplingOverrides``.

llama.cpp allocates memory and loops by some parameters without a check. The agent refuses a
client's value that is out of range and clamps an operator's; the engine checks once more and
refuses that one sequence. The window of a penalty has no limit here: one that is longer than the
cells of a slot means all of them, and only the engine has their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs

MAX_BREAKERS = 16
MAX_BREAKERS_BYTES = 256
"""The bytes of all together. llama.cpp compares each with every token of the vocabulary, and
tokenises what is left of it after each token that it may begin in: sixteen cost a second with
262,144 tokens."""
MAX_BREAKER_CHARS = 64
MAX_BIASED_TOKENS = 65536
MAX_LOGPROBS = 128
_MAX_FLOAT32 = 3.4e38
_MAX_INT32 = 2**31 - 1
_MAX_UINT32 = 2**32 - 1


@attrs.frozen
class Parameter:
    """A number that a request may choose, ``low`` and ``high`` included.

    ``default`` switches its stage off or, where another parameter does that, is llama.cpp's own.
    ``server_name`` is llama-server's name for it.
    """

    name: str
    default: int | float
    low: float
    high: float
    server_name: str = attrs.field(default=attrs.Factory(lambda self: self.name, takes_self=True))

    def problem(self, value: float) -> str | None:
        """Return why ``value`` is refused; None if it is in range. NaN is in none."""
        if self.low <= value <= self.high:
            return None
        upper = "" if self.high >= _MAX_INT32 else f" and at most {self.high:g}"
        return f"{self.name} is {value:g}, must be at least {self.low:g}{upper}"

    def clamped(self, value: float) -> int | float:
        """Return the nearest number in range, of the same type."""
        return type(value)(min(max(value, self.low), self.high))


def _positive(name: str, default: float) -> Parameter:
    return Parameter(name, default, 0, _MAX_FLOAT32)


def _probability(name: str, default: float) -> Parameter:
    return Parameter(name, default, 0, 1)


class SamplerFactory(Protocol):
    """The things that constructors of llama.cpp need beside the parameters; the engine implements
    it."""

    lib: Any
    """The module ``llama_cpp.llama_cpp``."""
    n_vocab: int
    vocab: object
    seed: int

    def window(self, last_n: int) -> int:
        """Return how many tokens a penalty looks back at, of ``last_n`` that were asked for."""

    def texts(self, texts: Sequence[str]) -> object:
        """Return a C array of these texts."""


@attrs.frozen(kw_only=True)
class SamplerStage:
    """One stage of a chain.

    ``name`` is llama.cpp's, ``character`` llama-server's abbreviation. ``is_on``: the stage changes
    anything with these parameters. ``build`` makes llama.cpp's sampler. ``is_random``: it samples
    with a seed of its own. ``only_lowers``: it never raises a logit, where its parameters do not
    reward repetition, and looks at no other token's. ``is_slow_to_build``: it is compared with the
    whole vocabulary when it is built. ``selects``: it chooses the token, so it is the last one
    wherever it is named.
    """

    name: str
    character: str
    parameters: tuple[Parameter, ...]
    is_on: Callable[[Sampling], bool]
    build: Callable[[Sampling, SamplerFactory], object]
    is_random: bool = False
    only_lowers: bool = False
    is_slow_to_build: bool = False
    selects: bool = False


def _temperature(s: Sampling, make: SamplerFactory) -> object:
    if s.dynatemp_range > 0.0:
        return make.lib.llama_sampler_init_temp_ext(
            s.temperature, s.dynatemp_range, s.dynatemp_exponent
        )
    return make.lib.llama_sampler_init_temp(s.temperature)


_STAGES = (
    SamplerStage(
        name="penalties",
        character="e",
        parameters=(
            Parameter("penalty_last_n", 0, -1, _MAX_INT32, "repeat_last_n"),
            Parameter("penalty_repeat", 1.0, 0.001, 1000, "repeat_penalty"),
            Parameter("penalty_frequency", 0.0, -1000, 1000, "frequency_penalty"),
            Parameter("penalty_presence", 0.0, -1000, 1000, "presence_penalty"),
        ),
        is_on=lambda s: (
            s.penalty_last_n != 0
            and (s.penalty_repeat, s.penalty_frequency, s.penalty_presence) != (1.0, 0.0, 0.0)
        ),
        build=lambda s, make: make.lib.llama_sampler_init_penalties(
            make.n_vocab,
            make.window(s.penalty_last_n),
            s.penalty_repeat,
            s.penalty_frequency,
            s.penalty_presence,
        ),
        only_lowers=True,
    ),
    SamplerStage(
        name="dry",
        character="d",
        parameters=(
            _positive("dry_multiplier", 0.0),
            Parameter("dry_base", 1.75, 1, _MAX_FLOAT32),
            Parameter("dry_allowed_length", 2, 0, _MAX_INT32),
            Parameter("dry_penalty_last_n", -1, -1, _MAX_INT32),
        ),
        is_on=lambda s: s.dry_multiplier != 0.0 and s.dry_base >= 1.0 and s.dry_penalty_last_n != 0,
        build=lambda s, make: make.lib.llama_sampler_init_dry(
            make.vocab,
            s.dry_multiplier,
            s.dry_base,
            s.dry_allowed_length,
            make.window(s.dry_penalty_last_n),
            make.texts(s.dry_sequence_breakers),
            len(s.dry_sequence_breakers),
        ),
        only_lowers=True,
        is_slow_to_build=True,
    ),
    SamplerStage(
        name="top_n_sigma",
        character="s",
        parameters=(Parameter("top_n_sigma", -1.0, -1, _MAX_FLOAT32),),
        is_on=lambda s: s.top_n_sigma > 0,
        build=lambda s, make: make.lib.llama_sampler_init_top_n_sigma(s.top_n_sigma),
    ),
    SamplerStage(
        name="top_k",
        character="k",
        parameters=(Parameter("top_k", 0, -1, _MAX_INT32),),
        is_on=lambda s: s.top_k > 0,
        build=lambda s, make: make.lib.llama_sampler_init_top_k(s.top_k),
    ),
    SamplerStage(
        name="typ_p",
        character="y",
        parameters=(_probability("typical_p", 1.0),),
        is_on=lambda s: s.typical_p < 1.0,
        build=lambda s, make: make.lib.llama_sampler_init_typical(s.typical_p, max(1, s.min_keep)),
    ),
    SamplerStage(
        name="top_p",
        character="p",
        parameters=(_probability("top_p", 1.0),),
        is_on=lambda s: s.top_p < 1.0,
        build=lambda s, make: make.lib.llama_sampler_init_top_p(s.top_p, max(1, s.min_keep)),
    ),
    SamplerStage(
        name="min_p",
        character="m",
        parameters=(_probability("min_p", 0.0),),
        is_on=lambda s: s.min_p > 0.0,
        build=lambda s, make: make.lib.llama_sampler_init_min_p(s.min_p, max(1, s.min_keep)),
    ),
    SamplerStage(
        name="xtc",
        character="x",
        parameters=(_probability("xtc_probability", 0.0), _probability("xtc_threshold", 0.1)),
        is_on=lambda s: s.xtc_probability > 0.0 and s.xtc_threshold <= 0.5,
        build=lambda s, make: make.lib.llama_sampler_init_xtc(
            s.xtc_probability, s.xtc_threshold, max(1, s.min_keep), make.seed
        ),
        is_random=True,
    ),
    SamplerStage(
        name="temperature",
        character="t",
        parameters=(
            _positive("temperature", 1.0),
            _positive("dynatemp_range", 0.0),
            _positive("dynatemp_exponent", 1.0),
        ),
        is_on=lambda s: s.dynatemp_range > 0.0 or s.temperature != 1.0,
        build=_temperature,
    ),
    SamplerStage(
        name="adaptive_p",
        character="a",
        parameters=(
            Parameter("adaptive_target", -1.0, -1, 1),
            Parameter("adaptive_decay", 0.9, 0, 0.99),
        ),
        is_on=lambda s: s.adaptive_target >= 0.0,
        build=lambda s, make: make.lib.llama_sampler_init_adaptive_p(
            s.adaptive_target, s.adaptive_decay, make.seed
        ),
        selects=True,
    ),
)
_OF_THE_CHAIN = (
    Parameter("mirostat", 0, 0, 2),
    _positive("mirostat_tau", 5.0),
    _positive("mirostat_eta", 0.1),
    Parameter("min_keep", 0, 0, _MAX_INT32),
)
"""Parameters of no single stage: mirostat replaces most of them, ``min_keep`` holds for several."""

STAGES = {stage.name: stage for stage in _STAGES}
"""The stages by llama.cpp's names, in its usual order."""
USUAL_STAGES = tuple(stage.name for stage in _STAGES if not stage.selects)
"""The stages of a chain that names none: one that selects has to be asked for."""
PARAMETERS = {
    parameter.name: parameter
    for parameter in (*(p for stage in _STAGES for p in stage.parameters), *_OF_THE_CHAIN)
}
"""Every number that a request may choose but the seed."""


def default_of(name: str) -> Any:  # an int or a float, as its parameter
    """Return the default of a parameter."""
    return PARAMETERS[name].default


DRY_BREAKERS = ("\n", ":", '"', "*")
"""Texts that llama.cpp's repetition penalty DRY does not look across, by default."""


@attrs.frozen(kw_only=True)
class Sampling:
    """Settings for sampling the next token, in llama.cpp's terms; what has a default is off by
    default.

    ``temperature`` <= 0 means the most likely token. ``penalty_last_n`` and
    ``dry_penalty_last_n``: -1 for the whole context; DRY sees the prompt, the other penalties only
    if ``penalize_prompt``. ``seed`` is 32 bits, unsigned. ``samplers``:
    stages in their order, empty for the usual ones. ``logit_bias``: what is added to the logit of
    a token; minus infinity bans it. ``post_sampling_probs``: the log probabilities that are
    reported are those of the tokens that the chain left, as it weighed them.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    penalty_last_n: int
    penalty_repeat: float
    penalty_frequency: float
    penalty_presence: float
    seed: int
    dynatemp_range: float = default_of("dynatemp_range")
    dynatemp_exponent: float = default_of("dynatemp_exponent")
    typical_p: float = default_of("typical_p")
    top_n_sigma: float = default_of("top_n_sigma")
    xtc_probability: float = default_of("xtc_probability")
    xtc_threshold: float = default_of("xtc_threshold")
    mirostat: int = default_of("mirostat")
    mirostat_tau: float = default_of("mirostat_tau")
    mirostat_eta: float = default_of("mirostat_eta")
    dry_multiplier: float = default_of("dry_multiplier")
    dry_base: float = default_of("dry_base")
    dry_allowed_length: int = default_of("dry_allowed_length")
    dry_penalty_last_n: int = default_of("dry_penalty_last_n")
    dry_sequence_breakers: list[str] = attrs.field(factory=lambda: list(DRY_BREAKERS))
    adaptive_target: float = default_of("adaptive_target")
    adaptive_decay: float = default_of("adaptive_decay")
    min_keep: int = default_of("min_keep")
    samplers: list[str] = attrs.field(factory=list)
    penalize_prompt: bool = False
    logit_bias: dict[int, float] = attrs.field(factory=dict)
    ignore_eos: bool = False
    post_sampling_probs: bool = False


# ------------------------------------------------------------------ limits of a whole Sampling


def breakers_problem(texts: Sequence[str]) -> str | None:
    """Return why these sequence breakers are refused as a whole; None if they are not too many."""
    if len(texts) > MAX_BREAKERS:
        return f"dry_sequence_breakers: {len(texts)} texts, the limit is {MAX_BREAKERS}"
    size = sum(len(text.encode(errors="replace")) for text in texts)
    if size > MAX_BREAKERS_BYTES:
        return f"dry_sequence_breakers: {size} bytes together, the limit is {MAX_BREAKERS_BYTES}"
    return None


def sampling_problem(sampling: Sampling, *, n_vocab: int, logprobs: int) -> str | None:
    """Return why no sampler may be built of this; None if one may.

    Args:
      n_vocab: tokens of the vocabulary.
      logprobs: alternatives to report with each token, -1 for no report.
    """
    for parameter in PARAMETERS.values():
        problem = parameter.problem(getattr(sampling, parameter.name))
        if problem is not None:
            return problem
    if not 0 <= sampling.seed <= _MAX_UINT32:
        return f"seed is {sampling.seed}, must be 0 to {_MAX_UINT32}"
    if not -1 <= logprobs <= MAX_LOGPROBS:
        return f"logprobs is {logprobs}, must be -1 to {MAX_LOGPROBS}"
    if len(STAGES.keys() & sampling.samplers) != len(sampling.samplers):
        return f"samplers: each must be one of {', '.join(STAGES)}, and none be there twice"
    if len(sampling.logit_bias) > MAX_BIASED_TOKENS:
        return f"logit_bias names {len(sampling.logit_bias)} tokens, limit {MAX_BIASED_TOKENS}"
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < n_vocab:
            return f"logit_bias: token {token} is outside the vocabulary of {n_vocab}"
        if math.isnan(bias) or bias == math.inf:
            return f"logit_bias of token {token} is {bias:g}, must be a number or minus infinity"
    return breakers_problem(sampling.dry_sequence_breakers)
