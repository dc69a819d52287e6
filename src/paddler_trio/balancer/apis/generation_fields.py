"""The fields that all requests for text have in common, and what they mean natively. Pure.

OpenAI's own, llama.cpp's, vLLM's and SGLang's: the others are what people add with ``extra_body``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from paddler_trio.balancer.apis.adapter_choice import choices_of
from paddler_trio.balancer.apis.api_errors import invalid
from paddler_trio.balancer.apis.fields import Field, accepted, hint, list_in, record, refused
from paddler_trio.balancer.apis.ignored_fields import STRICT, IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.sampling_fields import sampling_of
from paddler_trio.balancer.apis.shapes import (
    Anything,
    Either,
    Flag,
    FreeObject,
    Integer,
    ListOf,
    Number,
    Shape,
    Text,
)
from paddler_trio.balancer.front.end_user import MAX_USER_CHARS
from paddler_trio.net.server.client_identity import MAX_TIMEOUT_S, seconds_of
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.paddler.request_params import GbnfGrammar, JsonSchemaGrammar
from paddler_trio.wire.trio.work import (
    AnyJsonGrammar,
    ChoiceGrammar,
    Constraint,
    Generate,
    Prompt,
    RegexGrammar,
)

MAX_INT32 = 2**31 - 1
LABEL = Text(MAX_USER_CHARS)
"""A name of the client's making that answers may repeat. OpenAI takes 64 characters of some."""
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


MAX_MODEL_CHARS = 512
"""Each event of a stream repeats them."""
MAX_METADATA, MAX_METADATA_CHARS = 16, 512
"""Pairs, and characters of each: three events of a stream of ``/v1/responses`` repeat them."""
METADATA = FreeObject(Text(MAX_METADATA_CHARS), MAX_METADATA, "of metadata", most_name_chars=64)
MODEL = Field(
    "model",
    Text(MAX_MODEL_CHARS),
    "The deployment that answers, or an alias of it. Any other name is default's, or 404 under "
    "--strict-model-names.",
)


@attrs.frozen
class _Seconds(Number):
    """Also as text."""

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> float:
        seconds = seconds_of(value) if isinstance(value, str) else None
        return super().read(value if seconds is None else seconds, path, ignored)


TIMEOUT = Field(
    "timeout",
    _Seconds(0.001, MAX_TIMEOUT_S),
    "The answer is to be complete after so many seconds; 503 as soon as that cannot be.",
)
"""LiteLLM's; the header X-Request-Timeout says the same. ``ApiExchange.read`` takes it."""


def ending_fields(limits: ApiLimits) -> tuple[Field, ...]:
    """Return when an answer ends."""
    stop_text = Text(limits.max_stop_chars, "max_stop_chars")
    return (
        Field(
            "max_tokens",
            Integer(-1, MAX_INT32, clamps=True),
            "Tokens of the answer, reasoning included; absent or -1: as many as fit; 0 is 1, and "
            "reported.",
            aliases=("max_completion_tokens", "n_predict"),
        ),
        Field(
            "stop",
            Either((stop_text, ListOf(stop_text, 0, limits.max_stop_texts, "max_stop_texts"))),
            "Texts that end the answer and are not part of it; empty ones do nothing.",
        ),
        Field(
            "include_stop_str_in_output", Flag(), "The stop text that ended the answer ends it too."
        ),
    )


def constraint_fields(limits: ApiLimits) -> tuple[Field, ...]:
    """Return what the answer must look like; at most one of these and ``response_format``."""
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
        # a form that is not held is no form: the client reads the answer by it
        refused("structural_tag", "use tools, or a grammar"),
        hint("whitespace_pattern", "whitespace is the grammar's"),
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


def service_fields() -> tuple[Field, ...]:
    """Return how a request is served, whatever it asks for."""
    return (
        TIMEOUT,
        Field("cache_prompt", Flag(), "false: neither use nor keep the computed prompt."),
        Field("cache_salt", Text(256), "Only requests of equal salt share computed prompts."),
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
    """Known from llama.cpp and vLLM, and not to be had here.

    Most only bound an answer, or add to it: it is given without them, and they are reported. The
    others stay refused, each for its reason: the answer would be one that the client cannot use.
    """
    return (
        hint("n_keep", "contexts are not shifted", neutral=(0, -1)),
        hint("n_discard", "contexts are not shifted", neutral=(0,)),
        hint("n_indent", "an answer does not end where its indentation does", neutral=(0,)),
        hint("n_cache_reuse", "only common prefixes are reused", neutral=(0,)),
        hint("t_max_predict_ms", "max_tokens bounds an answer", neutral=(0, -1)),
        hint("t_max_prompt_ms", "a prompt is cut to its slot, not to a time", neutral=(0, -1)),
        hint("post_sampling_probs", "use /completion", neutral=(False,)),
        hint("backend_sampling", "the engine decides where it samples", neutral=(False,)),
        # a grammar that holds too early leaves no room for what is to come before it
        refused("grammar_lazy", "the grammar holds from the first token", neutral=(False,)),
        hint("grammar_triggers", "they count only with grammar_lazy", neutral=([],)),
        hint("preserved_tokens", "tokens are the vocabulary's", neutral=([],)),
        hint("use_beam_search", "there is no beam search", neutral=(False,)),
        hint("length_penalty", "it counts only with use_beam_search", neutral=(1,)),
        hint("early_stopping", "it counts only with use_beam_search", neutral=(False,)),
        hint("min_tokens", "use ignore_eos or a grammar", neutral=(0,)),
        hint("stop_token_ids", "use stop with the tokens' texts", neutral=([],)),
        hint("bad_words", "use logit_bias with false", neutral=([],)),
        # a program that chooses among tokens cannot read an answer of others
        refused("allowed_token_ids", "use a grammar", neutral=([],)),
        hint("skip_special_tokens", "special tokens are never part of text", neutral=(True,)),
        hint("spaces_between_special_tokens", "special tokens are not shown", neutral=(True,)),
        hint("truncate_prompt_tokens", "shorten the prompt yourself", neutral=(-1,)),
        hint("prompt_logprobs", "prompts are not scored", neutral=(0,)),
        hint("return_token_ids", "use logprobs, or /tokenize", neutral=(False,)),
        hint("priority", "use the header X-Paddler-Priority", neutral=(0,)),
        hint("guided_decoding_backend", "there is one", neutral=("auto",)),
        hint("guided_whitespace_pattern", "whitespace is the grammar's"),
    )


# ------------------------------------------------------------------- what the fields mean natively


def generate_of(
    values: Mapping[str, object],
    prompt: Prompt,
    *,
    max_tokens: int | None,
    constraint: Constraint | None,
    stop: Iterable[str] = (),
    logprobs: int | None = None,
) -> Generate:
    """Return the native request, with the sampling and the use of the cache that ``values`` ask
    for."""
    return Generate(
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=sampling_of(values),
        constraint=constraint,
        stop=tuple(stop),
        logprobs=logprobs,
        reuse_prefix=values.get("cache_prompt") is not False,
        cache_salt=str(values.get("cache_salt", "")),
        lora=choices_of(list_in(values, "lora")),
    )


def max_tokens_of(values: Mapping[str, object], ignored: IgnoredFields) -> int | None:
    """Return None for as many as fit. 0 is 1, and reported: llama-server samples one, too."""
    most = values.get("max_tokens")
    if most == 0:
        if ignored.is_strict:
            raise invalid("max_tokens is 0, must be at least 1 or -1", "max_tokens")
        ignored.add("", "max_tokens")
    return max(1, most) if isinstance(most, int) and most >= 0 else None


def stop_of(values: Mapping[str, object]) -> Sequence[str]:
    return [text for text in _texts(values.get("stop", [])) if text]


def constraint_of(
    values: Mapping[str, object], others: Mapping[str, Constraint]
) -> tuple[str | None, Constraint | None]:
    """Return the field that asks for the one constraint, and the constraint; or None twice.

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


def schema_constraint(schema: object, *, is_strict: bool = False) -> JsonSchemaGrammar:
    """``is_strict``: what no grammar can express is refused; if not, it binds the answer less."""
    if is_strict and isinstance(schema, dict):
        schema = {**schema, "strict": True}
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
    "guided_choice": lambda choices: ChoiceGrammar(tuple(_texts(choices))),
    "guided_grammar": _gbnf,
    "regex": _regex,
    "ebnf": _gbnf,
    "structured_outputs": _structured,
}
"""Of the fields that constrain an answer."""


def _texts(value: object) -> Sequence[str]:
    """Return a string or a list of strings, as a list."""
    if isinstance(value, str):
        return (value,)
    assert isinstance(value, list)
    return [str(text) for text in value]
