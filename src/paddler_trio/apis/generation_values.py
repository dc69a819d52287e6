"""What the fields of a request for text mean natively: pure, and only of what a table has read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paddler_trio.apis.api_errors import invalid
from paddler_trio.apis.generation_fields import MAX_INT32
from paddler_trio.apis.shapes import texts
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.engine.sampler_stages import PARAMETERS, STAGES
from paddler_trio.wire.paddler.request_params import GbnfGrammar, JsonSchemaGrammar
from paddler_trio.wire.trio.work import (
    AnyJsonGrammar,
    ChoiceGrammar,
    Constraint,
    LogitBias,
    RegexGrammar,
    SamplingOverrides,
)

_STAGES_BY_CHARACTER = {stage.character: stage.name for stage in STAGES.values()}
_NATIVE_NAMES = {each.server_name: each.name for each in PARAMETERS.values()}
"""Of the numbers, by their names in a request."""


def sampling_of(values: Mapping[str, object]) -> SamplingOverrides:
    """The settings of the request; all others are None."""
    # of as many types as there are fields: the table has read each
    sampling: dict[str, Any] = {
        native: values[name] for name, native in _NATIVE_NAMES.items() if name in values
    }
    if "ignore_eos" in values:
        sampling["ignore_eos"] = values["ignore_eos"]
    if sampling.get("top_k") == -1:
        sampling["top_k"] = 0
    if "dry_sequence_breakers" in values:
        sampling["dry_sequence_breakers"] = tuple(texts(values["dry_sequence_breakers"]))
    if "samplers" in values:
        sampling["samplers"] = _stages(values["samplers"])
    seed = values.get("seed")
    if isinstance(seed, int) and seed != -1:
        sampling["seed"] = seed % 2**32
    if "logit_bias" in values:
        sampling["logit_bias"] = _biases(values["logit_bias"])
    return SamplingOverrides(**sampling)


def _stages(value: object) -> tuple[str, ...]:
    if not isinstance(value, str):
        return tuple(texts(value))
    for character in value:
        if character not in _STAGES_BY_CHARACTER:
            known = ", ".join(f"{key} {stage}" for key, stage in _STAGES_BY_CHARACTER.items())
            raise invalid(f"samplers has the letter {character!r}, known are: {known}", "samplers")
    return tuple(_STAGES_BY_CHARACTER[character] for character in value)


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
        elif isinstance(value, Mapping) and target.isdecimal() and int(target) <= MAX_INT32:
            biases.append(LogitBias(token=int(target), bias=number))
        else:
            biases.append(LogitBias(text=target, bias=number))
    return tuple(biases)


def max_tokens_of(values: Mapping[str, object]) -> int | None:
    """None for as many as fit."""
    most = values.get("max_tokens")
    if most == 0:
        raise invalid("max_tokens is 0, must be at least 1, or -1 for as many as fit", "max_tokens")
    return most if isinstance(most, int) and most > 0 else None


def stop_of(values: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(texts(values.get("stop", [])))


def constraint_of(
    values: Mapping[str, object], others: Mapping[str, Constraint]
) -> tuple[str | None, Constraint | None]:
    """The field that asks for the one constraint, and the constraint; or None twice.

    Args:
      others: constraints that come from elsewhere, by the field that asks for them.

    Errors:
      ApiError: several fields ask for one.
    """
    asked = dict(others)
    if values.get("grammar"):
        asked["grammar"] = _gbnf(values["grammar"])
    if "json_schema" in values:
        asked["json_schema"] = _schema(values["json_schema"])
    if "guided_json" in values:
        asked["guided_json"] = _schema(values["guided_json"])
    if "guided_regex" in values:
        asked["guided_regex"] = RegexGrammar(str(values["guided_regex"]))
    if "guided_choice" in values:
        asked["guided_choice"] = ChoiceGrammar(tuple(texts(values["guided_choice"])))
    if "guided_grammar" in values:
        asked["guided_grammar"] = _gbnf(values["guided_grammar"])
    if "structured_outputs" in values:
        asked["structured_outputs"] = _structured(values["structured_outputs"])
    if len(asked) > 1:
        names = " and ".join(asked)
        raise invalid(f"{names} each constrain the answer; give one of them", list(asked)[1])
    return next(iter(asked.items()), (None, None))


def schema_constraint(schema: object) -> JsonSchemaGrammar:
    return JsonSchemaGrammar(dumps(schema).decode())


def _schema(value: object) -> JsonSchemaGrammar:
    return JsonSchemaGrammar(value) if isinstance(value, str) else schema_constraint(value)


def _gbnf(value: object) -> GbnfGrammar:
    return GbnfGrammar(str(value), "root")


def _structured(value: object) -> Constraint:
    assert isinstance(value, Mapping)
    given = {name: each for name, each in value.items() if each is not False}
    if len(given) != 1:
        raise invalid(
            f"structured_outputs has {len(given)} constraints, must have one", "structured_outputs"
        )
    ((name, constraint),) = given.items()
    match name:
        case "json":
            return _schema(constraint)
        case "regex":
            return RegexGrammar(str(constraint))
        case "choice":
            return ChoiceGrammar(tuple(texts(constraint)))
        case "grammar":
            return _gbnf(constraint)
    return AnyJsonGrammar()
