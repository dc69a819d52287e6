"""The limits of one request to an API; the error that a limit causes names it."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from attrs.validators import ge, gt

from paddler_trio.errors import ConfigurationError


@attrs.frozen(kw_only=True)
class ApiLimits:
    """Sizes and counts of one request, and the times of its answer.

    Attributes:
      max_body_bytes: of a body, before and after decompression; images travel inside it.
      max_json_values: scalars, names and containers in a body; a prompt as token ids is one value
        for each token.
      max_json_containers: objects and arrays in a body.
      max_nesting: objects and arrays inside one another in a body.
      max_messages: in one conversation.
      max_choices: ``n`` and ``best_of``.
      max_stop_texts, max_stop_chars: how many stop texts, and characters in each.
      max_tools: tools in one request.
      max_schema_bytes: one JSON Schema, written compactly; characters of its description where
        responses echo it.
      max_grammar_bytes: one grammar or pattern.
      max_logit_biases: entries of ``logit_bias``.
      max_prompts: prompts of one completion times its choices, inputs of one embeddings request.
      max_images: images of one request.
      max_image_bytes: one image that is fetched.
      fetch_timeout_s: for one image to arrive.
      max_stored_responses, max_stored_bytes: how many responses are kept to be gone on with, and
        what they may take together; 0 keeps none.
      max_answer_bytes: what is held of one answer until it is sent.
      max_logprobs: log probabilities of one answer: choices times tokens times alternatives.
      keep_alive_s: silence after which a stream carries a comment.
      hold_start_s: how long the status of a stream waits for its first token, so that an early
        refusal still has a status of its own.
    """

    max_body_bytes: int = attrs.field(default=33_554_432, validator=ge(1024))
    max_json_values: int = attrs.field(default=1_048_576, validator=ge(64))
    max_json_containers: int = attrs.field(default=131_072, validator=ge(16))
    max_nesting: int = attrs.field(default=64, validator=ge(8))
    max_messages: int = attrs.field(default=4096, validator=ge(1))
    max_choices: int = attrs.field(default=32, validator=ge(1))
    max_stop_texts: int = attrs.field(default=32, validator=ge(1))
    max_stop_chars: int = attrs.field(default=1024, validator=ge(1))
    max_tools: int = attrs.field(default=256, validator=ge(1))
    max_schema_bytes: int = attrs.field(default=262_144, validator=ge(64))
    max_grammar_bytes: int = attrs.field(default=262_144, validator=ge(64))
    max_logit_biases: int = attrs.field(default=4096, validator=ge(1))
    max_prompts: int = attrs.field(default=2048, validator=ge(1))
    max_images: int = attrs.field(default=32, validator=ge(0))
    max_image_bytes: int = attrs.field(default=20_971_520, validator=ge(1024))
    fetch_timeout_s: float = attrs.field(default=10.0, validator=gt(0))
    max_stored_responses: int = attrs.field(default=1024, validator=ge(0))
    max_stored_bytes: int = attrs.field(default=67_108_864, validator=ge(0))
    max_answer_bytes: int = attrs.field(default=67_108_864, validator=ge(1024))
    max_logprobs: int = attrs.field(default=1_048_576, validator=ge(1))
    keep_alive_s: float = attrs.field(default=5.0, validator=gt(0))
    hold_start_s: float = attrs.field(default=1.0, validator=ge(0))

    @classmethod
    def parse(cls, settings: Iterable[str]) -> ApiLimits:
        """Read ``name=value`` each; ConfigurationError for one that is wrong."""
        types = {field.name: type(field.default) for field in attrs.fields(cls)}
        values: dict[str, int | float] = {}
        for setting in settings:
            name, equals, text = setting.partition("=")
            if not equals or name not in types:
                raise ConfigurationError(
                    f"{setting!r} is no limit: write name=value with one of {', '.join(types)}"
                )
            try:
                values[name] = types[name](text)
            except ValueError:
                raise ConfigurationError(f"limit {name}: {text!r} is not a number") from None
        try:
            return cls(**values)  # type: ignore[arg-type]  # each has its field's own type
        except ValueError as error:
            raise ConfigurationError(f"limit: {error}") from error
