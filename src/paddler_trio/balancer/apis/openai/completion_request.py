"""The bodies of ``/v1/completions`` and of llama-server's ``/completion``: tables and reading.

Pure. Prompts that mix texts and token ids still need a tokeniser; the endpoint asks an agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import attrs

from paddler_trio.balancer.apis.adapter_choice import LORA
from paddler_trio.balancer.apis.api_errors import invalid
from paddler_trio.balancer.apis.fields import (
    Field,
    Record,
    accepted,
    hint,
    list_in,
    record,
    required,
    text_in,
)
from paddler_trio.balancer.apis.generation_fields import (
    MODEL,
    accepted_fields,
    constraint_fields,
    constraint_of,
    ending_fields,
    generate_of,
    max_tokens_of,
    refused_fields,
    service_fields,
    stop_of,
)
from paddler_trio.balancer.apis.ignored_fields import STRICT, IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.openai.chat_fields import (
    response_format_shape,
    stream_fields,
    verbose_field,
)
from paddler_trio.balancer.apis.openai.chat_request import (
    Delivery,
    check_logprobs,
    choices_of,
    delivery_of,
    only_streams,
)
from paddler_trio.balancer.apis.openai.chat_request import response_format_of as format_of
from paddler_trio.balancer.apis.prompts import Prompts, PromptShape, read_prompts
from paddler_trio.balancer.apis.sampling_fields import bias_field, sampling_fields
from paddler_trio.balancer.apis.shapes import Either, Flag, FreeObject, Integer, ListOf, Text
from paddler_trio.balancer.apis.under_presets import Generating
from paddler_trio.wire.trio.work import Generate, InfillPrompt, TextPrompt, TokenPrompt

RawPrompt: TypeAlias = TextPrompt | TokenPrompt | InfillPrompt
"""What no template renders."""

MAX_SUFFIX_CHARS: Final = 1024 * 1024
"""Of the suffixes of several prompts together: a request has one, which is sent with each."""

PROMPT: Final = required(
    "prompt", PromptShape(), "A text, token ids, both mixed, {prompt_string}, or a list of these."
)


def _shared_fields(limits: ApiLimits) -> tuple[Field, ...]:
    return (
        MODEL,
        Field("n", Integer(1, limits.max_choices), "Answers to each prompt.", aliases=("n_cmpl",)),
        *ending_fields(limits),
        *sampling_fields(),
        bias_field(limits),
        Field("response_format", response_format_shape(limits), "text, or JSON of a schema."),
        *constraint_fields(limits),
        *service_fields(),
        LORA,
        *accepted_fields(),
        *refused_fields(),
    )


@lru_cache(maxsize=8)
def completion_record(limits: ApiLimits) -> Record:
    """Return the body of ``/v1/completions``."""
    return record(
        "CreateCompletionRequest",
        PROMPT,
        Field(
            "suffix",
            Text(),
            "The text behind what is to be written, for a model that was trained to fill in the "
            "middle; the prompt must be a text then. What is too long is cut.",
        ),
        *_shared_fields(limits),
        *stream_fields(),
        Field("echo", Flag(), "The prompt's text stands before the answer's."),
        Field(
            "best_of",
            Integer(1, limits.max_choices),
            "Generate so many, answer with the n of the highest mean log probability.",
        ),
        Field(
            "logprobs",
            Either((Integer(0, 20, clamps=True), Flag())),
            "Log probabilities of the tokens, and of so many alternatives; true is 0.",
            aliases=("n_probs",),
        ),
        verbose_field(),
        hint("add_special_tokens", "give token ids for a prompt without", neutral=(True,)),
        hint("return_tokens", "use /completion or /tokenize", neutral=(False,)),
        hint("response_fields", "use /completion", neutral=([],)),
        note="Continues a text as it stands. Unknown fields are ignored and reported.",
    )


@lru_cache(maxsize=8)
def llama_completion_record(limits: ApiLimits) -> Record:
    """Return the body of ``/completion``, in llama-server's own dialect."""
    return record(
        "LlamaCompletionRequest",
        PROMPT,
        *llama_fields(limits),
        note="llama-server's own dialect. Unknown fields are ignored and reported.",
    )


def llama_fields(limits: ApiLimits) -> tuple[Field, ...]:
    """Return all but the prompt."""
    return (
        *(field for field in _shared_fields(limits) if field.name != "post_sampling_probs"),
        Field(
            "post_sampling_probs",
            Flag(),
            "n_probs reports probabilities behind all stages, of the tokens that are left.",
        ),
        *(field for field in stream_fields() if field.name != "stream_options"),
        accepted("stream_options", FreeObject(), "The last event has all counts anyway."),
        Field(
            "n_probs",
            Integer(0, 100, clamps=True),
            "Report so many alternatives.",
            aliases=("logprobs",),
        ),
        Field("return_tokens", Flag(), "The ids of the answer's tokens are part of it."),
        Field(
            "response_fields",
            ListOf(Text(256), 0, 64),
            "Only these members of the answer; a/b stands for member b of a.",
        ),
        accepted("verbose", Flag(), "The last event has the prompt and all settings anyway."),
        hint("echo", "use /v1/completions", neutral=(False,)),
        hint("parse_tool_calls", "a completion has no tools", neutral=(False,)),
        hint("reasoning_format", "a completion is not parsed", neutral=("none", "auto")),
    )


@attrs.frozen(kw_only=True)
class CompletionRequest(Generating):
    """``generate`` is the native request, but for its prompt.

    ``best_of`` is how many are generated for each prompt, ``n`` how many of them are returned.
    ``suffix``: the text behind what is to be written; the prompts are texts then.
    """

    prompts: Prompts
    n: int
    best_of: int
    delivery: Delivery
    with_echo: bool = False
    with_tokens: bool = False
    suffix: str = ""
    response_fields: tuple[str, ...] = ()
    constrained_by: str | None = None

    def works(self, prompts: Sequence[RawPrompt]) -> list[Generate]:
        """Return those of the first prompt, then of the second, and so on.

        Args:
          prompts: the native form of ``self.prompts``, in their order.
        """
        return [
            work
            for prompt in prompts
            for work in choices_of(attrs.evolve(self.generate, prompt=prompt), self.best_of)
        ]


def read_completion(
    body: object, limits: ApiLimits, ignored: IgnoredFields = STRICT
) -> CompletionRequest:
    """Read the request; ApiError 400, with the path of the field in ``param``, for what cannot be
    honoured."""
    values = completion_record(limits).read(body, "", ignored)
    only_streams(values, ignored)
    logprobs = values.get("logprobs")
    logprobs = {True: 0, False: None}[logprobs] if isinstance(logprobs, bool) else logprobs
    with_echo = values.get("echo") is True
    if with_echo and logprobs is not None:
        raise invalid(
            "logprobs of an echoed prompt are not to be had; give one of both", "logprobs"
        )
    n = _whole(values, "n", 1)
    best_of = _whole(values, "best_of", n)
    if best_of < n:
        raise invalid(f"best_of is {best_of}, must be at least n, which is {n}", "best_of")
    if best_of > n and values.get("stream") is True:
        raise invalid("best_of is not possible with stream: true", "best_of")
    wanted = logprobs if isinstance(logprobs, int) else None
    prompts = read_prompts(values["prompt"], limits)
    suffix = text_in(values, "suffix") or ""
    if suffix and not all(isinstance(prompt, str) for prompt in prompts.prompts):
        raise invalid("prompt has token ids; with a suffix it must be a text", "prompt")
    num_chars = len(prompts.prompts) * len(suffix)
    if len(prompts.prompts) > 1 and num_chars > MAX_SUFFIX_CHARS:
        raise invalid(
            f"suffix has {len(suffix)} characters behind each of {len(prompts.prompts)} prompts, "
            f"{num_chars} together, the limit is {MAX_SUFFIX_CHARS}: send fewer prompts at once",
            "suffix",
        )
    least = 0 if best_of > n and wanted is None else wanted
    request = _request(values, prompts, limits, ignored, logprobs=least)
    return attrs.evolve(
        request,
        n=n,
        best_of=best_of,
        with_echo=with_echo,
        suffix=suffix,
        delivery=attrs.evolve(request.delivery, with_logprobs=wanted is not None),
    )


def read_llama_completion(
    body: object, limits: ApiLimits, ignored: IgnoredFields = STRICT
) -> CompletionRequest:
    """Read a completion in llama-server's dialect."""
    values = llama_completion_record(limits).read(body, "", ignored)
    return completion_of(values, read_prompts(values["prompt"], limits), limits, ignored)


def completion_of(
    values: Mapping[str, object], prompts: Prompts, limits: ApiLimits, ignored: IgnoredFields
) -> CompletionRequest:
    """Return what the ``llama_fields`` of a request ask for."""
    only_streams(values, ignored)
    n_probs = _whole(values, "n_probs", 0)
    return attrs.evolve(
        _request(values, prompts, limits, ignored, logprobs=n_probs or None),
        with_tokens=values.get("return_tokens") is True,
        response_fields=tuple(list_in(values, "response_fields")),
    )


def _request(
    values: Mapping[str, object],
    prompts: Prompts,
    limits: ApiLimits,
    ignored: IgnoredFields,
    *,
    logprobs: int | None,
) -> CompletionRequest:
    n = _whole(values, "n", 1)
    constrained_by, constraint = constraint_of(values, format_of(values))
    generate = generate_of(
        values,
        TextPrompt(text=""),
        max_tokens=max_tokens_of(values, ignored),
        constraint=constraint,
        stop=stop_of(values),
        logprobs=logprobs,
    )
    choices = len(prompts.prompts) * max(n, _whole(values, "best_of", n))
    if choices > limits.max_prompts:
        raise invalid(
            f"prompts times n is {choices}, the limit max_prompts is {limits.max_prompts}", "prompt"
        )
    check_logprobs(values, generate, choices, limits)
    return CompletionRequest(
        prompts=prompts,
        generate=generate,
        n=n,
        best_of=n,
        delivery=delivery_of(values, logprobs),
        constrained_by=constrained_by,
    )


def _whole(values: Mapping[str, object], name: str, default: int) -> int:
    value = values.get(name, default)
    assert isinstance(value, int)
    return value
