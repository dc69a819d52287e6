"""The work of our agents: ``Generate``, ``Embed`` and ``Rank`` beside Paddler's requests.

The newer routes (``/api/v2/generate``, ``/v1/*``) build these values; they are sent inside
:class:`~paddler_trio.wire.trio.trio_link.Start`, as Paddler's requests are. The balancer checks
types and ranges; the agent checks what depends on the model (template, schema, vocabulary).

Results are Paddler's and the additional tags in ``wire/paddler/results.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import attrs

from paddler_trio.wire.paddler.request_params import (
    WORK_VARIANTS,
    GbnfGrammar,
    JsonSchemaGrammar,
    PaddlerWork,
)
from paddler_trio.wire.scalars import Float32, Int32, Uint32
from paddler_trio.wire.shape import OMITTED
from paddler_trio.wire.tags import external_tag, internal_tag, struct, structs
from paddler_trio.wire.trio.adapters import AdapterChoice

# -------------------------------------------------------------------------------- constraints


@attrs.frozen
class RegexGrammar:
    """The whole answer matches this pattern, anchored at both ends."""

    pattern: str


@attrs.frozen
class ChoiceGrammar:
    """The whole answer is one of these texts."""

    choices: tuple[str, ...]


@attrs.frozen
class AnyJsonGrammar:
    """The whole answer is some JSON object."""


Constraint: TypeAlias = (
    GbnfGrammar | JsonSchemaGrammar | RegexGrammar | ChoiceGrammar | AnyJsonGrammar
)
internal_tag(
    Constraint,
    "type",
    {
        "gbnf": GbnfGrammar,
        "json_schema": JsonSchemaGrammar,
        "regex": RegexGrammar,
        "choice": ChoiceGrammar,
        "json_object": AnyJsonGrammar,
    },
)


# ----------------------------------------------------------------------------------- sampling


@attrs.frozen(kw_only=True)
class LogitBias:
    """Added to the logit of one ``token``, or of every token ``text`` consists of.

    A ``bias`` of None means never. Exactly one of ``token`` and ``text`` is given.
    """

    token: Int32 | None = attrs.field(default=None, metadata=OMITTED)
    text: str | None = attrs.field(default=None, metadata=OMITTED)
    bias: Float32 | None = None


@attrs.frozen(kw_only=True)
class SamplingOverrides:
    """Settings of sampling of one request; None leaves the cluster's, or off.

    Names and meanings are llama.cpp's. ``penalty_last_n`` and ``dry_penalty_last_n``: -1 for the
    whole context; DRY sees the prompt, the other penalties only if ``penalize_prompt``.
    ``mirostat``: 0 off, 1 or 2. ``samplers``: the stages and their order, by
    llama.cpp's names; ``adaptive_p`` is used only if it is named. ``post_sampling_probs``: the log
    probabilities that are reported are those after all stages.
    """

    temperature: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    dynatemp_range: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    dynatemp_exponent: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    top_k: Int32 | None = attrs.field(default=None, metadata=OMITTED)
    top_p: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    min_p: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    typical_p: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    top_n_sigma: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    xtc_probability: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    xtc_threshold: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    mirostat: Int32 | None = attrs.field(default=None, metadata=OMITTED)
    mirostat_tau: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    mirostat_eta: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    penalty_last_n: Int32 | None = attrs.field(default=None, metadata=OMITTED)
    penalty_repeat: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    penalty_frequency: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    penalty_presence: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    dry_multiplier: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    dry_base: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    dry_allowed_length: Int32 | None = attrs.field(default=None, metadata=OMITTED)
    dry_penalty_last_n: Int32 | None = attrs.field(default=None, metadata=OMITTED)
    dry_sequence_breakers: tuple[str, ...] | None = attrs.field(default=None, metadata=OMITTED)
    adaptive_target: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    adaptive_decay: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    min_keep: Int32 | None = attrs.field(default=None, metadata=OMITTED)
    samplers: tuple[str, ...] | None = attrs.field(default=None, metadata=OMITTED)
    penalize_prompt: bool = attrs.field(default=False, metadata=OMITTED)
    logit_bias: tuple[LogitBias, ...] = attrs.field(default=(), metadata=OMITTED)
    ignore_eos: bool = attrs.field(default=False, metadata=OMITTED)
    post_sampling_probs: bool = attrs.field(default=False, metadata=OMITTED)
    seed: Uint32 | None = attrs.field(default=None, metadata=OMITTED)


# ------------------------------------------------------------------------------------ prompts


@attrs.frozen(kw_only=True)
class TextPrompt:
    """Continue this text as it stands; special tokens in it are parsed if ``parse_special``."""

    text: str
    parse_special: bool = attrs.field(default=True, metadata=OMITTED)


@attrs.frozen(kw_only=True)
class TokenPrompt:
    """Continue exactly these tokens; no BOS is added."""

    tokens: tuple[Int32, ...]


@attrs.frozen(kw_only=True)
class ConversationPrompt:
    """Answer a conversation through the model's chat template.

    ``messages`` and ``tools`` are JSON objects in the shape of OpenAI's chat completions; assistant
    messages may carry ``reasoning_content``. ``tool_choice``: ``auto``, ``none``, ``required``, or
    ``function`` with ``tool_name``. ``thinking`` None leaves the template's own default;
    ``max_reasoning_tokens`` ends the reasoning after so many tokens. ``template_kwargs`` are
    further template variables. ``continue_final_message``: the answer goes on with the last
    message, which is the assistant's. ``raw_tool_calls``: pass the model's tool-call text on
    unparsed. ``raw_reasoning``: pass the reasoning on as content, with the marks around it.
    """

    messages: tuple[Mapping[str, object], ...]
    tools: tuple[Mapping[str, object], ...] = ()
    tool_choice: str = "auto"
    tool_name: str | None = None
    parallel_tool_calls: bool = True
    raw_tool_calls: bool = False
    continue_final_message: bool = False
    add_generation_prompt: bool = True
    thinking: bool | None = None
    max_reasoning_tokens: Int32 | None = None
    template_kwargs: Mapping[str, object] = attrs.field(factory=dict)
    raw_reasoning: bool = attrs.field(default=False, metadata=OMITTED)

    @property
    def may_call(self) -> bool:
        """Return whether the answer may have calls."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def reads_calls(self) -> bool:
        """Return whether calls are read: they are not wanted as the model writes them."""
        return self.may_call and not self.raw_tool_calls


@attrs.frozen(kw_only=True)
class OtherText:
    """A text that an infill may look at; ``filename`` is where it stands."""

    text: str
    filename: str = "tmp"


@attrs.frozen(kw_only=True)
class InfillPrompt:
    """Write what stands between ``prefix`` and ``suffix``: fill in the middle.

    No text becomes a control token. ``middle``: what the answer goes on after, behind the token of
    the middle. ``others``: the last ones are the most important. Agents cut what is too long: the
    prefix and the middle keep their ends, the suffix its beginning.

    It is sent only to agents that offer :data:`~paddler_trio.wire.trio.trio_link.INFILL`.
    """

    prefix: str
    suffix: str
    middle: str = attrs.field(default="", metadata=OMITTED)
    others: tuple[OtherText, ...] = attrs.field(default=(), metadata=OMITTED)


Prompt: TypeAlias = TextPrompt | TokenPrompt | ConversationPrompt | InfillPrompt
external_tag(
    Prompt,
    struct(TextPrompt, "Text"),
    struct(TokenPrompt, "Tokens"),
    struct(ConversationPrompt, "Conversation"),
    struct(InfillPrompt, "Infill"),
)


@attrs.frozen(kw_only=True)
class Generate:
    """One answer.

    ``max_tokens`` None means as many as fit. ``stop``: texts that end the answer and are not part
    of it. ``logprobs``: how many alternatives to report for each token; 0 reports the sampled
    token alone, None reports nothing. ``reuse_prefix``: whether the cache may serve this request
    and keep what it computes; only requests with equal ``cache_salt`` share a prefix. ``lora``: the
    adapters of the deployment that it is computed with. ``context``: tokens that the prompt stands
    behind, such as an earlier prompt with its answer. With it, though it is empty, ``Progress``
    tells the tokens of the whole prompt; it is sent only to agents that offer
    :data:`~paddler_trio.wire.trio.trio_link.CONTEXT`.
    """

    prompt: Prompt
    max_tokens: Int32 | None = None
    sampling: SamplingOverrides = attrs.field(factory=SamplingOverrides)
    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
    logprobs: Int32 | None = None
    reuse_prefix: bool = True
    cache_salt: str = ""
    lora: tuple[AdapterChoice, ...] = attrs.field(default=(), metadata=OMITTED)
    context: tuple[Int32, ...] | None = attrs.field(default=None, metadata=OMITTED)


# -------------------------------------------------------------------------------- embeddings


@attrs.frozen(kw_only=True)
class TextInput:
    text: str


@attrs.frozen(kw_only=True)
class TokenInput:
    tokens: tuple[Int32, ...]


EmbedInput: TypeAlias = TextInput | TokenInput
external_tag(EmbedInput, struct(TextInput, "Text"), struct(TokenInput, "Tokens"))


@attrs.frozen(kw_only=True)
class Embed:
    """Embed each input; answered by ``Embedding`` results whose document id is its index.

    ``normalize``: ``l2``, ``rms`` or ``none``. ``oversize``: ``report`` a document longer than the
    batch, ``truncate`` it, or ``chunk`` it and average the chunks by length.
    """

    inputs: tuple[EmbedInput, ...]
    normalize: str = "l2"
    oversize: str = "report"


@attrs.frozen(kw_only=True)
class Rank:
    """Score each document against a query, by a model with rank pooling."""

    query: str
    documents: tuple[str, ...]


TrioWork: TypeAlias = Generate | Embed | Rank
Work: TypeAlias = TrioWork | PaddlerWork
"""All that an agent of ours can be asked to compute."""
_VARIANTS: Final = structs(TrioWork)
external_tag(TrioWork, *_VARIANTS)
external_tag(Work, *_VARIANTS, *WORK_VARIANTS)
