"""A chat completion's body as native requests: pure, every field honoured or refused by name."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from paddler_trio.balancer.apis.answers.answer import AnswerReader, reader_of
from paddler_trio.balancer.apis.api_errors import invalid
from paddler_trio.balancer.apis.fields import object_in, text_in
from paddler_trio.balancer.apis.generation_fields import (
    constraint_of,
    generate_of,
    max_tokens_of,
    schema_constraint,
    stop_of,
)
from paddler_trio.balancer.apis.ignored_fields import STRICT, IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.openai.chat_conversation import conversation_prompt, custom_tools_in
from paddler_trio.balancer.apis.openai.chat_fields import chat_record
from paddler_trio.balancer.apis.under_presets import CountedPrompt, Generating
from paddler_trio.wire.trio.work import AnyJsonGrammar, Constraint, Generate


@attrs.frozen(kw_only=True)
class Delivery:
    """Say how an answer is delivered; everything about the generation itself is in the works.

    Attributes:
      model: the name to echo; None for the served one's.
      with_stop_text: a stop text that ended the answer is part of it.
      with_progress: chunks report the progress of the prompt.
      is_verbose: the answer carries the prompt and the settings of the model.
      ping_s: seconds of silence before a comment, over the surface's own.
      custom_tools: the names of the tools that take free text.
      is_exact: the answer has nothing that OpenAI's own schema does not have; a call is one chunk.
    """

    model: str | None = None
    is_stream: bool = False
    with_usage: bool = False
    with_reasoning: bool = True
    reasoning_is_content: bool = False
    with_logprobs: bool = False
    with_stop_text: bool = False
    with_timings: bool = False
    with_progress: bool = False
    is_verbose: bool = False
    ping_s: float | None = None
    custom_tools: frozenset[str] = frozenset()
    is_exact: bool = False

    def exactly(self, ignored: IgnoredFields) -> Delivery:
        """Return the request without what OpenAI's own schema does not have; ``ignored`` collects
        it."""
        extras = {
            "timings_per_token": self.with_timings,
            "return_progress": self.with_progress,
            "verbose": self.is_verbose,
        }
        for name, is_wanted in extras.items():
            if is_wanted:
                ignored.add("", name)
        return attrs.evolve(
            self,
            with_reasoning=False,
            with_timings=False,
            with_progress=False,
            is_verbose=False,
            is_exact=True,
        )


@attrs.frozen(kw_only=True)
class ChatRequest(Generating):
    """``generate`` is the first of ``n`` choices.

    ``constrained_by`` is the field that constrains the answer.
    """

    n: int
    delivery: Delivery
    constrained_by: str | None = None

    def readers(self) -> list[AnswerReader]:
        """Return one for each choice; reasoning that is part of the content keeps the blanks around
        it."""
        is_verbatim = self.delivery.reasoning_is_content
        return [reader_of(self.generate, is_verbatim=is_verbatim) for _ in range(self.n)]

    def works(self) -> list[Generate]:
        """Return one for each choice; those after the first sample with the next seeds."""
        return choices_of(self.generate, self.n)


def read_chat(body: object, limits: ApiLimits, ignored: IgnoredFields = STRICT) -> ChatRequest:
    """Read the request; ApiError 400, with the path of the field in ``param``, for what cannot be
    honoured."""
    values = chat_record(limits).read(body, "", ignored)
    logprobs = _logprobs(values)
    only_streams(values, ignored)
    constrained_by, constraint = constraint_of(values, response_format_of(values))
    generate = generate_of(
        values,
        conversation_prompt(values, ignored),
        max_tokens=max_tokens_of(values, ignored),
        constraint=constraint,
        stop=stop_of(values),
        logprobs=logprobs,
    )
    n = values.get("n", 1)
    assert isinstance(n, int)
    check_logprobs(values, generate, n, limits)
    return ChatRequest(
        generate=generate,
        n=n,
        delivery=delivery_of(values, logprobs),
        constrained_by=constrained_by,
    )


def conversation_of(
    body: object, limits: ApiLimits, ignored: IgnoredFields = STRICT
) -> CountedPrompt:
    """Only the prompt of a chat completion's body, and the model that it names."""
    values = chat_record(limits).read(body, "", ignored)
    return CountedPrompt(conversation_prompt(values, ignored), text_in(values, "model"))


def choices_of(generate: Generate, n: int) -> list[Generate]:
    """``n`` works that differ in their seeds, if there is one."""
    seed = generate.sampling.seed
    if seed is None:
        return [generate] * n
    seeds = [(seed + choice) % 2**32 for choice in range(n)]
    return [
        attrs.evolve(generate, sampling=attrs.evolve(generate.sampling, seed=own)) for own in seeds
    ]


def check_logprobs(
    values: Mapping[str, object], generate: Generate, num_choices: int, limits: ApiLimits
) -> None:
    """Raise ApiError 400 for several choices with more log probabilities than one answer may have.

    A single choice is bound by its context; so is what has no ``max_tokens``, and by what may be
    held of one answer.
    """
    most, alternatives = generate.max_tokens, generate.logprobs
    if num_choices == 1 or most is None or alternatives is None:
        return
    product = num_choices * most * (1 + alternatives)
    if product > limits.max_logprobs:
        names = ("top_logprobs", "n_probs", "logprobs")
        field = next((name for name in names if name in values), "n")
        raise invalid(
            f"{field}: {num_choices} choices of {most} tokens with {alternatives} alternatives "
            f"each are {product} log probabilities, the limit max_logprobs is "
            f"{limits.max_logprobs}: ask for fewer of one",
            field,
        )


def delivery_of(values: Mapping[str, object], logprobs: int | None) -> Delivery:
    options, reasoning = object_in(values, "stream_options"), object_in(values, "reasoning")
    hidden = values.get("include_reasoning") is False or reasoning.get("exclude") is True
    return Delivery(
        model=text_in(values, "model"),
        is_stream=values.get("stream") is True,
        with_usage=options.get("include_usage") is True,
        with_reasoning=not hidden,
        reasoning_is_content=values.get("reasoning_format") == "none",
        with_logprobs=logprobs is not None,
        with_stop_text=values.get("include_stop_str_in_output") is True,
        with_timings=values.get("timings_per_token") is True,
        with_progress=values.get("return_progress") is True,
        is_verbose=values.get("verbose") is True,
        ping_s=ping_s_of(values.get("sse_ping_interval")),
        custom_tools=custom_tools_in(values),
    )


def ping_s_of(interval: object) -> float | None:
    """Return seconds of silence before a comment: None for the surface's own, infinite for none."""
    if not isinstance(interval, int):
        return None
    return float("inf") if interval <= 0 else float(interval)


def only_streams(values: Mapping[str, object], ignored: IgnoredFields) -> None:
    """Without a stream, fields that only a stream can honour have no effect."""
    if values.get("stream") is True:
        return
    for name in ("stream_options", "timings_per_token", "return_progress", "sse_ping_interval"):
        if values.get(name):
            if ignored.is_strict:
                raise invalid(f"{name} is only possible with stream: true", name)
            ignored.add("", name)


def _logprobs(values: Mapping[str, object]) -> int | None:
    """Return how many alternatives are reported with each token; None for no report at all."""
    top, n_probs, wanted = (values.get(name) for name in ("top_logprobs", "n_probs", "logprobs"))
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        return wanted  # as completions have it
    if top and not wanted:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    if wanted:
        return top if isinstance(top, int) else 0
    return n_probs if isinstance(n_probs, int) and n_probs > 0 else None


def response_format_of(values: Mapping[str, object]) -> dict[str, Constraint]:
    """Return the constraint that ``response_format`` asks for, by its name."""
    wanted = values.get("response_format")
    if not isinstance(wanted, Mapping) or wanted["type"] == "text":
        return {}
    inner = wanted if wanted["type"] == "json_object" else wanted["json_schema"]
    assert isinstance(inner, Mapping)
    if "schema" in inner:
        is_strict = inner.get("strict") is True
        return {"response_format": schema_constraint(inner["schema"], is_strict=is_strict)}
    return {"response_format": AnyJsonGrammar()}
