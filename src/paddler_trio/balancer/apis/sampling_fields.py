"""The fields that say how tokens are sampled, and what they mean natively. Pure.

A number out of its range is taken as the nearest in it, and a stage that nobody knows is left out;
both are reported. The ranges are those of the table of stages, which the engine is safe with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from paddler_trio.balancer.apis.api_errors import invalid
from paddler_trio.balancer.apis.fields import Field
from paddler_trio.balancer.apis.ignored_fields import STRICT, IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.shapes import (
    Either,
    Flag,
    FreeObject,
    Integer,
    Json,
    ListOf,
    Number,
    PairOf,
    Text,
)
from paddler_trio.wire.engine.sampler_stages import (
    MAX_BREAKER_CHARS,
    PARAMETERS,
    STAGES,
    breakers_problem,
)
from paddler_trio.wire.trio.work import LogitBias, SamplingOverrides

MAX_INT32 = 2**31 - 1
MAX_DIGITS = 20
"""Of the id of a token in a name, zeros before it included."""
MAX_STAGES = 64
MAX_LISTED_CHARS = 4096
"""Of a list that is written as a text."""
PROMPT_WINDOW = 64
"""Tokens that a penalty of a request looks back at, unless it says how many: as llama-server."""

_PARAMETERS = {each.server_name: each for each in PARAMETERS.values()}
"""Of the numbers, by their names in a request."""
_BY_CHARACTER = {stage.character: stage.name for stage in STAGES.values()}
_BY_NAME = {
    spelling: name
    for name in STAGES
    for spelling in (name, name.replace("_", "-"), name.replace("_", ""))
} | {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p"}
_BY_NAME |= {"typical_p": "typ_p", "typical-p": "typ_p", "typical": "typ_p"}
"""All spellings that llama.cpp and programs before it have for its stages."""


@attrs.frozen
class Stages:
    """The stages of a chain, by names in a list or by letters in a text.

    Those that nobody knows, and one that is there again, are reported and left out.
    """

    expected = "a list of names of stages, or a text of their letters"

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> tuple[str, ...]:
        if not isinstance(value, list | str):
            raise invalid(f"{path} is no list, must be {self.expected}", path, code="invalid_type")
        if len(value) > MAX_STAGES:
            raise invalid(f"{path} has {len(value)} stages, the limit is {MAX_STAGES}", path)
        is_letters = isinstance(value, str)
        stages: dict[str, None] = {}
        for place, given in enumerate(value):
            if not isinstance(given, str):
                raise invalid(f"{path}[{place}] is no text, must name a stage", f"{path}[{place}]")
            stage = _BY_CHARACTER.get(given) if is_letters else _BY_NAME.get(given.lower())
            if stage is not None and stage not in stages:
                stages[stage] = None
                continue
            if ignored.is_strict:
                known = ", ".join(_BY_CHARACTER if is_letters else STAGES)
                why = "is there twice" if stage in stages else f"is none of {known}"
                where = path if is_letters else f"{path}[{place}]"
                raise invalid(f"{where}: {given[:80]!r} {why}", where)
            ignored.add(path, given)
        if not stages:
            ignored.add("", path)
        return tuple(stages)

    def schema(self) -> Json:
        names: Json = {"type": "array", "items": {"type": "string"}, "maxItems": MAX_STAGES}
        return {"anyOf": [names, {"type": "string", "maxLength": MAX_STAGES}]}


@attrs.frozen
class Breakers:
    """The texts that DRY does not look across: a list, or the JSON text of one.

    Those that are too many or too long are reported and left out.
    """

    expected = "a list of texts"

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> tuple[str, ...]:
        given = ListOf(Text()).read(_listed(value), path)
        kept: list[str] = []
        for place, text in enumerate(map(str, given)):
            if text in kept:
                continue
            if 0 < len(text) <= MAX_BREAKER_CHARS:
                problem = breakers_problem([*kept, text])
            else:
                problem = f"{path}: a text of {len(text)} characters, must have 1 to 64"
            if problem is None:
                kept.append(text)
            elif ignored.is_strict:
                raise invalid(problem, f"{path}[{place}]")
            else:
                ignored.add("", f"{path}[{place}]")
        return tuple(kept)

    def schema(self) -> Json:
        return Either((ListOf(Text()), Text())).schema()


def _listed(value: object) -> object:
    """Return a list that was written as JSON text, with or without brackets; or a text as the only
    one."""
    if not isinstance(value, str):
        return value
    if len(value) > MAX_LISTED_CHARS:
        return [value]
    for text in (value, f"[{value}]"):
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(listed, list):
            return listed
    return [value]


def sampling_fields() -> tuple[Field, ...]:
    """Return how tokens are sampled; the cluster's parameters stand in for absent fields."""
    return (
        _number("temperature", "0 always samples the most likely token."),
        _number("top_p", "Sample among the most likely tokens that have this share."),
        _number("top_k", "Sample among so many most likely tokens; 0 or -1 for all."),
        _number("min_p", "Drop tokens less likely than this share of the likeliest."),
        _number("typical_p", "Locally typical sampling; 1 is off."),
        _number("top_n_sigma", "Keep logits within so many deviations; -1 is off."),
        _number("dynatemp_range", "The temperature moves by so much with entropy."),
        _number("dynatemp_exponent", "How entropy becomes temperature."),
        _number("xtc_probability", "How often the likeliest tokens are dropped."),
        _number("xtc_threshold", "What counts as likely for xtc_probability."),
        _number("mirostat", "0 off, 1 or 2 for that version."),
        _number("mirostat_tau", "The surprise mirostat aims at."),
        _number("mirostat_eta", "How fast mirostat learns."),
        *_repetition_fields(),
        _number(
            "adaptive_target",
            "Sample tokens near this probability, with adaptive_p among the samplers; -1 is off.",
        ),
        _number("adaptive_decay", "How long adaptive_p remembers what it sampled."),
        _number("min_keep", "Samplers leave at least so many tokens."),
        Field(
            "samplers",
            Stages(),
            "The stages and their order, by llama.cpp's names or letters. Unknown ones are left "
            "out and reported; none: the usual ones.",
        ),
        Field(
            "seed",
            Integer(-(2**63), 2**64 - 1, clamps=True),
            "Equal seeds sample equally; taken modulo 2^32; -1 for a random one. Choice i samples "
            "with seed + i.",
        ),
        Field("ignore_eos", Flag(), "Never sample the tokens that end an answer."),
    )


def _repetition_fields() -> tuple[Field, ...]:
    """Return the fields for tokens that occurred before."""
    return (
        _number(
            "repeat_penalty",
            "Divides the logits of tokens that occurred; 1 is off.",
            aliases=("repetition_penalty",),
        ),
        _number(
            "repeat_last_n",
            "How far penalties look back; -1 for the whole context. Absent, where the request asks "
            f"for a penalty: {PROMPT_WINDOW}.",
        ),
        _number("frequency_penalty", "Taken off a logit for each occurrence."),
        _number("presence_penalty", "Taken off the logit of tokens that occurred."),
        Field(
            "penalize_prompt",
            Flag(),
            "Whether penalties look back into the prompt; absent: if the request asks for one, as "
            "in llama-server.",
        ),
        _number("dry_multiplier", "Strength of the DRY repetition penalty; 0 is off."),
        _number("dry_base", "How the DRY penalty grows."),
        _number("dry_allowed_length", "Repetitions DRY leaves alone."),
        _number("dry_penalty_last_n", "How far DRY looks back; -1 for the whole context."),
        Field(
            "dry_sequence_breakers",
            Breakers(),
            "Texts that DRY does not look across; 16 and 256 bytes together.",
        ),
    )


def _number(name: str, note: str, *, aliases: tuple[str, ...] = ()) -> Field:
    parameter = _PARAMETERS[name]
    kind = Integer if isinstance(parameter.default, int) else Number
    shape = kind(parameter.low, parameter.high, clamps=True)
    return Field(name, shape, note, aliases=aliases)


def bias_field(limits: ApiLimits) -> Field:
    """Return what is added to the logits of some tokens."""
    bias = Either((Number(-1e6, 1e6, clamps=True), Flag()))
    token = Either((Integer(0, MAX_INT32), Text(256, least_chars=1)))
    most, name = limits.max_logit_biases, "max_logit_biases"
    return Field(
        "logit_bias",
        Either((FreeObject(bias, most, name), ListOf(PairOf(token, bias), 0, most, name))),
        "Added to logits: {token id or text: bias}, or a list of such pairs; false is never.",
    )


def sampling_of(values: Mapping[str, object]) -> SamplingOverrides:
    """Return the settings of the request; all others are None."""
    # of as many types as there are fields: the table has read each
    sampling: dict[str, Any] = {
        parameter.name: values[name] for name, parameter in _PARAMETERS.items() if name in values
    }
    for name in ("ignore_eos", "post_sampling_probs"):
        if name in values:
            sampling[name] = values[name] is True
    if sampling.get("top_k") == -1:
        sampling["top_k"] = 0
    for name in ("dry_sequence_breakers", "samplers"):
        if values.get(name):
            sampling[name] = values[name]
    seed = values.get("seed")
    if isinstance(seed, int) and seed != -1:
        sampling["seed"] = seed % 2**32
    if "logit_bias" in values:
        sampling["logit_bias"] = _biases(values["logit_bias"])
    return SamplingOverrides(**(sampling | _penalties(values)))


def _penalties(values: Mapping[str, object]) -> dict[str, Any]:  # of two types
    """llama-server's way where the request asks for a penalty: some tokens of the prompt count.

    The operator's own penalties are Paddler's, which do not see the prompt."""
    asks = any(
        values.get(name, neutral) != neutral
        for name, neutral in (
            ("repeat_penalty", 1),
            ("frequency_penalty", 0),
            ("presence_penalty", 0),
        )
    )
    penalties: dict[str, Any] = {"penalize_prompt": values.get("penalize_prompt", asks)}
    if asks and "repeat_last_n" not in values:
        penalties["penalty_last_n"] = PROMPT_WINDOW
    return penalties


def _is_token(name: str) -> bool:
    """Return whether it is the id of a token. Python reads no number of thousands of digits."""
    return len(name) <= MAX_DIGITS and name.isdecimal() and int(name) <= MAX_INT32


def _biases(value: object) -> tuple[LogitBias, ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    assert not isinstance(pairs, str)
    biases = []
    for target, bias in pairs:  # type: ignore[attr-defined]  # shapes were read
        if target == "":
            raise invalid("logit_bias has an empty text; name a token or its text", "logit_bias")
        if bias is True:
            raise invalid("logit_bias has the bias true; write a number, or false", "logit_bias")
        number = None if bias is False else bias
        if isinstance(target, int):
            biases.append(LogitBias(token=target, bias=number))
        elif isinstance(value, Mapping) and _is_token(target):
            biases.append(LogitBias(token=int(target), bias=number))
        else:
            biases.append(LogitBias(text=target, bias=number))
    return tuple(biases)
