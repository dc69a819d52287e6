"""A request becomes tokens: everything about language that happens before the engine is here.

    prompt -> rendering -> tokens; constraint -> grammar; overrides -> sampling; the answer's reader

Paddler's two requests are converted to the extended one, which covers both. Runs in a preparation
process, off the event loop and off the decode path. What cannot be prompted is a
:class:`Refusal` that carries the ending result its client gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, assert_never

import attrs

from paddler_trio.language.adapters_of_requests import adapters_of
from paddler_trio.language.answer_grammar import (
    ToolNotConvertibleError,
    budget_of_answer,
    grammar_of_answer,
)
from paddler_trio.language.answers.model_format import ModelFormat
from paddler_trio.language.answers.output_processor import OutputProcessor
from paddler_trio.language.answers.stop_texts import StopTexts
from paddler_trio.language.answers.tool_calls import ToolCallReader, reader_of_calls
from paddler_trio.language.grammars.conversion import SchemaNotConvertibleError
from paddler_trio.language.grammars.lark import GrammarError, Unbound
from paddler_trio.language.infill import infill_tokens_of
from paddler_trio.language.model_language import Language
from paddler_trio.language.prompt_tokens import (
    beginning,
    behind_context,
    checked_tokens,
    tokens_with_images,
)
from paddler_trio.language.refusal import Refusal, bad_request
from paddler_trio.language.rendering import Rendering, plain, render
from paddler_trio.language.sampling_settings import sampling_of
from paddler_trio.language.templates.chat_messages import text_of
from paddler_trio.language.tool_schemas import ToolSchemaError
from paddler_trio.language.vocabulary import TokenizationError, Vocabulary
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.engine.engine_pipe import (
    Grammar,
    StartSequence,
)
from paddler_trio.wire.engine.sampler_stages import MAX_LOGPROBS
from paddler_trio.wire.paddler.request_params import (
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
)
from paddler_trio.wire.paddler.results import MAX_UNBOUND
from paddler_trio.wire.trio.work import (
    ConversationPrompt,
    Generate,
    InfillPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
)

PaddlerWork: TypeAlias = ContinueFromRawPromptParams | ContinueFromConversationHistoryParams
GenerationWork: TypeAlias = PaddlerWork | Generate

MAX_STOP_TEXTS = 64
MAX_STOP_CHARS = 1024
MAX_SALT_CHARS = 1024


@attrs.frozen(kw_only=True)
class Prompted:
    """The engine is sent ``start``, and ``output`` reads its answer.

    Each of the images has one ``IMAGE_TOKEN`` among the tokens.
    """

    start: StartSequence
    output: OutputProcessor


def prompt_of(
    work: GenerationWork,
    language: Language,
    *,
    key: int,
    seed: int,
    sampled: Sequence[int],
    isolated: bool = False,
    sees_images: bool = False,
    slot_cells: int = 0,
) -> Prompted:
    """Render, tokenise and constrain; raises Refusal.

    Args:
      key: of the engine's sequence.
      seed: of the sampler, unless the request has its own.
      sampled: tokens of this answer that another agent produced: the answer's reader replays them
        and sends nothing.
      isolated: the engine computes this sequence alone.
      sees_images: the engine was loaded with a projection.
      slot_cells: what a sequence may hold; a longer prompt is refused before it is rendered. 0: the
        engine decides alone.
    """
    is_extended = isinstance(work, Generate)
    request = _checked_request(work) if isinstance(work, Generate) else _generate_of(work)
    if slot_cells:
        _check_length(request, language.vocabulary, slot_cells, is_extended=is_extended)
    rendering = rendering_of(
        request.prompt,
        language,
        as_paddler=not is_extended,
        sees_images=sees_images,
        has_form=request.constraint is not None,
    )
    tokens = tokens_of(request.prompt, rendering, language, slot_cells=slot_cells)
    if is_extended and not tokens and not request.context:
        tokens = beginning(request.prompt, language.vocabulary)
    if request.context:
        tokens = behind_context(request.context, request.prompt, tokens, language.vocabulary)
    output = _output_of(request, rendering, seed=seed, is_extended=is_extended)
    unbound: Unbound = {}
    grammar = _grammar(request, rendering, language, unbound, binds_calls=is_extended)
    output.unbound = list(unbound)[:MAX_UNBOUND]
    if request.context is not None and not rendering.images:
        output.prompt_tokens = tokens
    _replay(sampled, output, language.vocabulary)
    start = StartSequence(
        key=key,
        tokens=tokens,
        images=list(rendering.images),
        sampled=list(sampled),
        max_tokens=request.max_tokens or 0,
        sampling=sampling_of(language.parameters, request.sampling, language.vocabulary, seed=seed),
        grammar=grammar,
        reasoning=budget_of_answer(request.prompt, rendering.start, language.vocabulary),
        logprobs=-1 if request.logprobs is None else request.logprobs,
        reuse_prefix=request.reuse_prefix,
        salt=request.cache_salt,
        isolated=isolated,
        hides_controls=is_extended and _hides_controls(request, language.vocabulary),
        adapters=adapters_of(request.lora, language.adapters),
    )
    return Prompted(start=start, output=output)


def _check_length(
    request: Generate, vocabulary: Vocabulary, slot_cells: int, *, is_extended: bool
) -> None:
    """Refuse a prompt that cannot fit a slot."""
    num_before = len(request.context or ())
    too_long = length_problem(request.prompt, vocabulary, slot_cells, num_before=num_before)
    if too_long is not None:
        raise bad_request("prompt", too_long) if is_extended else Refusal("SamplerError", too_long)


def _output_of(
    request: Generate, rendering: Rendering, *, seed: int, is_extended: bool
) -> OutputProcessor:
    """Return the object that reads the answer to a request."""
    prompt = request.prompt
    return OutputProcessor(
        rendering.classifier,
        call_reader(prompt, rendering.start.form, seed=seed),
        StopTexts(request.stop) if request.stop else None,
        is_extended,
        without_layout_from=_without_layout_from(prompt) if is_extended else None,
        reasoning_is_content=isinstance(prompt, ConversationPrompt) and prompt.raw_reasoning,
    )


def _replay(sampled: Sequence[int], output: OutputProcessor, vocabulary: Vocabulary) -> None:
    """Let the reader of an answer know what another agent has produced of it."""
    try:
        output.replay(vocabulary.token_bytes(token, special=True) for token in sampled)
    except TokenizationError as error:
        raise Refusal("SamplerError", f"cannot continue: {error}") from error


def length_problem(
    prompt: Prompt, vocabulary: Vocabulary, slot_cells: int, *, num_before: int = 0
) -> str | None:
    """Why a prompt cannot fit a slot, however its text is cut into tokens; None if it may.

    Of a conversation only user messages count: templates leave out other things. ``num_before``:
    the tokens that it stands behind.
    """
    least = num_before + _least_tokens(prompt, vocabulary)
    if least <= slot_cells:
        return None
    return (
        f"the prompt has at least {least} tokens, but one slot of this agent holds {slot_cells} "
        "tokens; shorten the prompt, raise context_size, or use fewer slots"
    )


def _least_tokens(prompt: Prompt, vocabulary: Vocabulary) -> int:
    match prompt:
        case TokenPrompt(tokens=tokens):
            return len(tokens)
        case TextPrompt(text=text):
            num_chars = len(text)
        case InfillPrompt():
            return 0  # it is cut
        case ConversationPrompt(messages=messages):
            users = (each for each in messages if each.get("role") == "user")
            num_chars = sum(len(text_of(each.get("content"))) for each in users)
        case other:
            assert_never(other)
    longest = vocabulary.longest_token_chars
    return -(-num_chars // longest) if longest else 0


def rendering_of(
    prompt: Prompt,
    language: Language,
    *,
    as_paddler: bool = False,
    sees_images: bool = False,
    has_form: bool = False,
) -> Rendering:
    """The text of a prompt; empty for one that is made of tokens. Raises Refusal."""
    match prompt:
        case ConversationPrompt():
            return render(
                prompt,
                language,
                as_paddler=as_paddler,
                sees_images=sees_images,
                has_form=has_form,
            )
        case TextPrompt(text=text):
            return plain(text, language, as_paddler=as_paddler)
        case TokenPrompt() | InfillPrompt():
            return plain("", language, as_paddler=as_paddler)


def tokens_of(
    prompt: Prompt, rendering: Rendering, language: Language, *, slot_cells: int = 0
) -> list[int]:
    """Return what the engine is given; raises Refusal. ``slot_cells``: what an infill is cut to."""
    vocabulary = language.vocabulary
    if isinstance(prompt, InfillPrompt):
        n_batch = language.parameters.n_batch
        return infill_tokens_of(prompt, vocabulary, slot_cells=slot_cells, n_batch=n_batch)
    if isinstance(prompt, TokenPrompt):
        return checked_tokens(prompt.tokens, vocabulary, "prompt.tokens")
    try:
        if isinstance(prompt, TextPrompt) and not prompt.parse_special:
            plain = vocabulary.tokenize(prompt.text, add_special=False, parse_special=False)
            adds_bos = vocabulary.adds_bos and vocabulary.bos_token is not None
            return [vocabulary.bos_token, *plain] if adds_bos else plain  # type: ignore[list-item]
        if rendering.images:
            return tokens_with_images(rendering.text, vocabulary)
        return vocabulary.tokenize_prompt(rendering.text)
    except TokenizationError as error:
        raise Refusal("SamplerError", str(error)) from error


def call_reader(prompt: Prompt, form: ModelFormat, *, seed: int) -> ToolCallReader | None:
    """A reader for calls written in ``form``; None if they stay unread.

    Args:
      seed: of the request, the same on every agent that works on it: a call keeps its id when the
        answer continues on another agent.

    Raises:
      Refusal: a tool is not usable.
    """
    if not isinstance(prompt, ConversationPrompt) or not prompt.reads_calls:
        return None
    try:
        return reader_of_calls(form, prompt.tools, seed=seed)
    except ToolSchemaError as error:
        raise Refusal("ToolSchemaInvalid", str(error)) from error


def _without_layout_from(prompt: Prompt) -> int | None:
    """A plain text keeps every blank, and so does a message that the answer continues."""
    if not isinstance(prompt, ConversationPrompt) or prompt.raw_reasoning:
        return None
    return 1 if prompt.continue_final_message else 0


def _generate_of(params: PaddlerWork) -> Generate:
    """Paddler's requests as ours; raises Refusal for what Paddler refuses."""
    if params.max_tokens < 1:
        raise Refusal("SamplerError", f"max_tokens is {params.max_tokens}, must be at least 1")
    if isinstance(params, ContinueFromRawPromptParams):
        return Generate(
            prompt=TextPrompt(text=params.raw_prompt),
            max_tokens=params.max_tokens,
            constraint=params.grammar,
        )
    if params.grammar is not None and params.enable_thinking:
        raise Refusal(
            "GrammarIncompatibleWithThinking",
            "a grammar constrains from the first token: set enable_thinking to false",
        )
    messages = [unstructure(message) for message in params.conversation_history]
    tools = [unstructure(tool) for tool in params.tools]
    return Generate(
        prompt=ConversationPrompt(
            messages=tuple(message for message in messages if isinstance(message, dict)),
            tools=tuple(tool for tool in tools if isinstance(tool, dict)),
            add_generation_prompt=params.add_generation_prompt,
            thinking=params.enable_thinking,
            raw_tool_calls=not params.parse_tool_calls,
        ),
        max_tokens=params.max_tokens,
        constraint=params.grammar,
    )


def _checked_request(request: Generate) -> Generate:
    """Return the request; refuse what is wrong with any model."""
    if request.max_tokens is not None and request.max_tokens < 1:
        raise bad_request("max_tokens", f"max_tokens is {request.max_tokens}, must be at least 1")
    if len(request.stop) > MAX_STOP_TEXTS:
        raise bad_request("stop", f"stop: {len(request.stop)} texts, the limit is {MAX_STOP_TEXTS}")
    for place, text in enumerate(request.stop):
        if not 0 < len(text) <= MAX_STOP_CHARS:
            raise bad_request(
                f"stop[{place}]",
                f"stop: a text of {len(text)} characters, must have 1 to {MAX_STOP_CHARS}",
            )
    if request.logprobs is not None and not 0 <= request.logprobs <= MAX_LOGPROBS:
        raise bad_request(
            "logprobs", f"logprobs is {request.logprobs}, must be 0 to {MAX_LOGPROBS}"
        )
    if len(request.cache_salt) > MAX_SALT_CHARS:
        raise bad_request(
            "cache_salt",
            f"cache_salt: {len(request.cache_salt)} characters, the limit is {MAX_SALT_CHARS}",
        )
    return request


def _hides_controls(request: Generate, vocabulary: Vocabulary) -> bool:
    """Return whether control tokens have no text: in a text that is continued nothing reads
    them, but for what asks for their text: a stop text, or a constraint."""
    if isinstance(request.prompt, ConversationPrompt) or request.constraint is not None:
        return False
    return not any(mark in text for text in request.stop for mark in vocabulary.control_texts)


def _grammar(
    request: Generate,
    rendering: Rendering,
    language: Language,
    unbound: Unbound,
    *,
    binds_calls: bool,
) -> Grammar | None:
    """Return what every token must fit; ``unbound`` takes the places of what is left out.

    Paddler's requests are bound by their grammar alone; in ours tool calls are bound too, unless
    they are wanted as the model writes them.
    """
    prompt = request.prompt
    conversation = prompt if isinstance(prompt, ConversationPrompt) else None
    if conversation is not None and (
        not binds_calls or (conversation.tool_choice == "auto" and conversation.raw_tool_calls)
    ):
        conversation = attrs.evolve(conversation, tools=())
    try:
        grammar = grammar_of_answer(
            request.constraint, conversation, rendering.start, language.vocabulary, unbound
        )
        return None if grammar is None else grammar.compiled()
    except ToolNotConvertibleError as error:
        raise Refusal("ToolSchemaInvalid", str(error)) from error
    except SchemaNotConvertibleError as error:
        raise Refusal("GrammarSyntaxError", str(error)) from error
    except GrammarError as error:
        raise Refusal("GrammarInitializationFailed", str(error)) from error
