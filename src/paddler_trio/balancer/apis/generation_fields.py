"""The fields that all requests for text have in common, and what they mean natively. Pure.

OpenAI's own, llama.cpp's, vLLM's and SGLang's: the others are what people add with ``extra_body``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from paddler_trio.balancer.apis.api_errors import invalid
from paddler_trio.balancer.apis.fields import Field, accepted, hint, record, refused
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.shapes import (
    Anything,
    Either,
    Flag,
    FreeObject,
    Integer,
    ListOf,
    Number,
    OneOf,
    PairOf,
    Shape,
    Text,
    texts,
)
from paddler_trio.balancer.front.end_user import MAX_USER_CHARS
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.engine.sampler_stages import (
    MAX_BREAKER_CHARS,
    MAX_BREAKERS,
    PARAMETERS,
    STAGES,
)
from paddler_trio.wire.paddler.request_params import GbnfGrammar, JsonSchemaGrammar
from paddler_trio.wire.trio.work import (
    AnyJsonGrammar,
    ChoiceGrammar,
    Constraint,
    Generate,
    LogitBias,
    Prompt,
    RegexGrammar,
    SamplingOverrides,
)

MAX_INT32 = 2**31 - 1
LABEL = Text(MAX_USER_CHARS)
"""A name of the client's making that answers may repeat. OpenAI takes 64 characters of some."""
MAX_DIGITS = 20
"""Of the id of a token in a name, zeros before it included."""
_SPECULATIVE: dict[str, Shape] = {
    "type": Text(64),
    "n_max": Integer(0, MAX_INT32),
    "n_min": Integer(0, MAX_INT32),
    "p_min": Number(0, 1),
    "ngram_size_n": Integer(0, MAX_INT32),
    "ngram_size_m": Integer(0, MAX_INT32),
    "ngram_min_hits": Integer(0, MAX_INT32),
}
"""How llama.cpp's drafts are made, as its server takes it."""


MODEL = Field(
    "model",
    Text(512),
    "The deployment that answers, or an alias of it. Any other name is default's, or 404 under "
    "--strict-model-names.",
)


def sampling_fields() -> tuple[Field, ...]:
    """How tokens are sampled; the cluster's parameters stand in for absent fields."""
    whole = Integer(-1, MAX_INT32)
    return (
        Field("temperature", Number(0, 2), "0 always samples the most likely token."),
        Field("top_p", Number(0, 1), "Sample among the most likely tokens that have this share."),
        Field("top_k", whole, "Sample among so many most likely tokens; 0 or -1 for all."),
        Field("min_p", Number(0, 1), "Drop tokens less likely than this share of the likeliest."),
        Field("typical_p", Number(0, 1), "Locally typical sampling; 1 is off."),
        Field("top_n_sigma", Number(-1, 1000), "Keep logits within so many deviations; -1 is off."),
        Field("dynatemp_range", Number(0, 100), "The temperature moves by so much with entropy."),
        Field("dynatemp_exponent", Number(0, 100), "How entropy becomes temperature."),
        Field("xtc_probability", Number(0, 1), "How often the likeliest tokens are dropped."),
        Field("xtc_threshold", Number(0, 1), "What counts as likely for xtc_probability."),
        Field("mirostat", Integer(0, 2), "0 off, 1 or 2 for that version."),
        Field("mirostat_tau", Number(0, 100), "The surprise mirostat aims at."),
        Field("mirostat_eta", Number(0, 1), "How fast mirostat learns."),
        Field(
            "repeat_penalty",
            Number(0.01, 100),
            "Divides the logits of tokens that occurred; 1 is off.",
            aliases=("repetition_penalty",),
        ),
        Field("repeat_last_n", whole, "How far penalties look back; -1 for the whole context."),
        Field("frequency_penalty", Number(-2, 2), "Taken off a logit for each occurrence."),
        Field("presence_penalty", Number(-2, 2), "Taken off the logit of tokens that occurred."),
        Field(
            "dry_multiplier", Number(0, 100), "Strength of the DRY repetition penalty; 0 is off."
        ),
        Field("dry_base", Number(1, 100), "How the DRY penalty grows."),
        Field("dry_allowed_length", Integer(0, MAX_INT32), "Repetitions DRY leaves alone."),
        Field("dry_penalty_last_n", whole, "How far DRY looks back; -1 for the whole context."),
        Field(
            "dry_sequence_breakers",
            ListOf(Text(MAX_BREAKER_CHARS, least_chars=1), 1, MAX_BREAKERS),
            "Texts that DRY does not look across; 256 bytes together.",
        ),
        Field("min_keep", Integer(0, 100_000), "Samplers leave at least so many tokens."),
        Field(
            "samplers",
            Either((ListOf(OneOf(tuple(STAGES)), 0, 32), Text(32))),
            "The stages and their order, by llama.cpp's names or letters.",
        ),
        Field(
            "seed",
            Integer(-(2**63), 2**64 - 1),
            "Equal seeds sample equally; taken modulo 2^32; -1 for a random one. Choice i samples "
            "with seed + i.",
        ),
        Field("ignore_eos", Flag(), "Never sample the tokens that end an answer."),
    )


def ending_fields(limits: ApiLimits) -> tuple[Field, ...]:
    """When an answer ends."""
    stop_text = Text(limits.max_stop_chars, "max_stop_chars", least_chars=1)
    return (
        Field(
            "max_tokens",
            Integer(-1, MAX_INT32),
            "Tokens of the answer, reasoning included; absent or -1: as many as fit.",
            aliases=("max_completion_tokens", "n_predict"),
        ),
        Field(
            "stop",
            Either((stop_text, ListOf(stop_text, 0, limits.max_stop_texts, "max_stop_texts"))),
            "Texts that end the answer and are not part of it.",
        ),
        Field(
            "include_stop_str_in_output", Flag(), "The stop text that ended the answer ends it too."
        ),
    )


def constraint_fields(limits: ApiLimits) -> tuple[Field, ...]:
    """What the answer must look like; at most one of these and ``response_format``."""
    schema = FreeObject(most_bytes=limits.max_schema_bytes, limit="max_schema_bytes")
    text = Text(limits.max_grammar_bytes, "max_grammar_bytes", least_chars=1)
    choices = ListOf(Text(4096, least_chars=1), 1, 1024)
    structured = record(
        "structured_outputs",
        Field("json", Either((schema, text)), "As guided_json."),
        Field("regex", text, "As guided_regex."),
        Field("choice", choices, "As guided_choice."),
        Field("grammar", text, "As grammar: GBNF."),
        Field("json_object", Flag(), "Any JSON object."),
        refused("structural_tag", "use tools, or a grammar"),
        refused("whitespace_pattern", "whitespace is the grammar's"),
    )
    return (
        Field(
            "grammar", Text(limits.max_grammar_bytes, "max_grammar_bytes"), "GBNF of the answer."
        ),
        Field("json_schema", schema, "JSON Schema of the answer."),
        Field("guided_json", Either((schema, text)), "As json_schema, or its text."),
        Field("guided_regex", text, "A pattern that the whole answer matches."),
        Field("guided_choice", choices, "The answer is one of these."),
        Field("guided_grammar", text, "As grammar: GBNF."),
        Field("regex", text, "As guided_regex; SGLang's name."),
        Field("ebnf", text, "As grammar: GBNF; SGLang's name."),
        Field(
            "structured_outputs",
            structured,
            "One of json, regex, choice, grammar (GBNF) and json_object, as in vLLM.",
        ),
    )


def cache_fields() -> tuple[Field, ...]:
    return (
        Field("cache_prompt", Flag(), "false: neither use nor keep the computed prompt."),
        Field("cache_salt", Text(256), "Only requests of equal salt share computed prompts."),
    )


def bias_field(limits: ApiLimits) -> Field:
    bias = Either((Number(-1e6, 1e6), Flag()))
    token = Either((Integer(0, MAX_INT32), Text(256, least_chars=1)))
    most, name = limits.max_logit_biases, "max_logit_biases"
    return Field(
        "logit_bias",
        Either((FreeObject(bias, most, name), ListOf(PairOf(token, bias), 0, most, name))),
        "Added to logits: {token id or text: bias}, or a list of such pairs; false is never.",
    )


def accepted_fields() -> tuple[Field, ...]:
    """Valid and without effect: labels for a provider's own books, or hints."""
    note = "Kept nowhere: it is a label for the provider's own books."
    user = "The key's turns go round its users; of the name a hash lives as long as the request."
    return (
        accepted("user", LABEL, user),
        accepted("metadata", FreeObject(Anything()), note),
        accepted("store", Flag(), "Nothing is stored, whatever it says."),
        accepted("safety_identifier", LABEL, f"As user, and before it. {user}"),
        accepted("prompt_cache_key", LABEL, "Prefixes are found by their tokens, not by a key."),
        accepted("prompt_cache_retention", Text(64), "Computed prompts stay until room is needed."),
        accepted("prompt_cache_options", FreeObject(), "Prefixes are found by their tokens."),
        accepted("service_tier", Text(64), "There is one tier, and answers say default."),
        accepted("id_slot", Integer(-1, MAX_INT32), "The balancer chooses the slot."),
        *(
            accepted(f"speculative.{name}", shape, "Drafts change only how fast an answer comes.")
            for name, shape in _SPECULATIVE.items()
        ),
    )


def refused_fields() -> tuple[Field, ...]:
    """Known from llama.cpp and vLLM, and not to be had here: hints, and what answers depend on."""
    return (
        hint("n_keep", "contexts are not shifted", neutral=(0, -1)),
        hint("n_discard", "contexts are not shifted", neutral=(0,)),
        refused("n_indent", "indentation is not enforced; use a grammar", neutral=(0,)),
        hint("n_cache_reuse", "only common prefixes are reused", neutral=(0,)),
        refused("t_max_predict_ms", "use max_tokens, or close the connection", neutral=(0, -1)),
        refused("t_max_prompt_ms", "use a time limit of your client", neutral=(0, -1)),
        refused("post_sampling_probs", "probabilities are those of the model", neutral=(False,)),
        hint("backend_sampling", "the engine decides where it samples", neutral=(False,)),
        refused("adaptive_target", "there is no adaptive sampler; use mirostat", neutral=(-1,)),
        hint("adaptive_decay", "it counts only with adaptive_target"),
        refused("lora", "adapters are not chosen by a request", neutral=([],)),
        refused("grammar_lazy", "the grammar holds from the first token", neutral=(False,)),
        refused("grammar_triggers", "the grammar holds from the first token", neutral=([],)),
        refused("preserved_tokens", "tokens are the vocabulary's", neutral=([],)),
        refused("use_beam_search", "there is no beam search", neutral=(False,)),
        hint("length_penalty", "it counts only with use_beam_search", neutral=(1,)),
        hint("early_stopping", "it counts only with use_beam_search", neutral=(False,)),
        refused("min_tokens", "use ignore_eos or a grammar", neutral=(0,)),
        refused("stop_token_ids", "use stop with the tokens' texts", neutral=([],)),
        refused("bad_words", "use logit_bias with false", neutral=([],)),
        refused("allowed_token_ids", "use a grammar", neutral=([],)),
        refused("skip_special_tokens", "special tokens are never part of text", neutral=(True,)),
        hint("spaces_between_special_tokens", "special tokens are not shown", neutral=(True,)),
        refused("truncate_prompt_tokens", "shorten the prompt yourself", neutral=(-1,)),
        refused("prompt_logprobs", "prompts are not scored"),
        refused("return_token_ids", "use logprobs, or /tokenize", neutral=(False,)),
        hint("priority", "use the header X-Paddler-Priority", neutral=(0,)),
        hint("guided_decoding_backend", "there is one", neutral=("auto",)),
        refused("guided_whitespace_pattern", "whitespace is the grammar's"),
    )


# ------------------------------------------------------------------- what the fields mean natively


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


def _is_token(name: str) -> bool:
    """Whether it is the id of a token. Python reads no number of thousands of digits."""
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


def generate_of(
    values: Mapping[str, object],
    prompt: Prompt,
    *,
    max_tokens: int | None,
    constraint: Constraint | None,
    stop: Iterable[str] = (),
    logprobs: int | None = None,
) -> Generate:
    """The native request, with the sampling and the use of the cache that ``values`` ask for."""
    return Generate(
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=sampling_of(values),
        constraint=constraint,
        stop=tuple(stop),
        logprobs=logprobs,
        reuse_prefix=values.get("cache_prompt") is not False,
        cache_salt=str(values.get("cache_salt", "")),
    )


def max_tokens_of(values: Mapping[str, object]) -> int | None:
    """None for as many as fit."""
    most = values.get("max_tokens")
    if most == 0:
        raise invalid("max_tokens is 0, must be at least 1, or -1 for as many as fit", "max_tokens")
    return most if isinstance(most, int) and most > 0 else None


def stop_of(values: Mapping[str, object]) -> Sequence[str]:
    return texts(values.get("stop", []))


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
    for name, make in _CONSTRAINTS.items():
        if values.get(name, "") != "":
            asked[name] = make(values[name])
    if len(asked) > 1:
        names = " and ".join(asked)
        raise invalid(f"{names} each constrain the answer; give one of them", list(asked)[1])
    return next(iter(asked.items()), (None, None))


def schema_constraint(schema: object) -> JsonSchemaGrammar:
    return JsonSchemaGrammar(dumps(schema).decode())


def _schema(value: object) -> JsonSchemaGrammar:
    return JsonSchemaGrammar(value) if isinstance(value, str) else schema_constraint(value)


def _regex(value: object) -> RegexGrammar:
    return RegexGrammar(str(value))


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
    return AnyJsonGrammar() if name == "json_object" else _CONSTRAINTS[f"guided_{name}"](constraint)


_CONSTRAINTS: Mapping[str, Callable[[object], Constraint]] = {
    "grammar": _gbnf,
    "json_schema": _schema,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": lambda choices: ChoiceGrammar(tuple(texts(choices))),
    "guided_grammar": _gbnf,
    "regex": _regex,
    "ebnf": _gbnf,
    "structured_outputs": _structured,
}
"""Of the fields that constrain an answer."""
