"""The tokens of a prompt: of its text, of tokens that were given, and what stands before them.

What the model cannot be given is a :class:`Refusal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from paddler_trio.language.images.image_parts import texts_between
from paddler_trio.language.infill import infill_tokens_of
from paddler_trio.language.model_language import Language
from paddler_trio.language.refusal import Refusal, bad_request
from paddler_trio.language.rendering import Rendering
from paddler_trio.language.templates.chat_messages import text_of
from paddler_trio.language.vocabulary import TokenizationError, Vocabulary
from paddler_trio.wire.engine.media import MEDIA_TOKEN
from paddler_trio.wire.trio.work import (
    ConversationPrompt,
    InfillPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
)


def tokens_of(
    prompt: Prompt, rendering: Rendering, language: Language, *, slot_cells: int = 0
) -> list[int]:
    """Return what the engine is given; raises Refusal. ``slot_cells``: what an infill is cut to."""
    vocabulary = language.vocabulary
    if isinstance(prompt, InfillPrompt):
        n_batch = language.parameters.n_batch
        return infill_tokens_of(prompt, vocabulary, slot_cells=slot_cells, n_batch=n_batch)
    if isinstance(prompt, TokenPrompt):
        return _checked(prompt.tokens, vocabulary, "prompt.tokens")
    try:
        if isinstance(prompt, TextPrompt) and not prompt.parse_special:
            plain = vocabulary.tokenize(prompt.text, add_special=False, parse_special=False)
            adds_bos = vocabulary.adds_bos and vocabulary.bos_token is not None
            return [vocabulary.bos_token, *plain] if adds_bos else plain  # type: ignore[list-item]
        if rendering.media:
            return _tokens_with_media(rendering.text, vocabulary)
        return vocabulary.tokenize_prompt(rendering.text)
    except TokenizationError as error:
        raise Refusal("SamplerError", str(error)) from error


def tokens_of_nothing(prompt: Prompt, vocabulary: Vocabulary) -> list[int]:
    """Return what every text comes after, as the model was trained: the end of another if there is
    no mark of a beginning. Only a plain text may be empty."""
    marks = (vocabulary.bos_token, vocabulary.eos_token)
    found = [mark for mark in marks if mark is not None][:1]
    if not found or not isinstance(prompt, TextPrompt):
        raise bad_request("prompt", "the prompt is empty: there is nothing to continue")
    return found


def tokens_behind(
    context: Sequence[int], prompt: Prompt, tokens: list[int], vocabulary: Vocabulary
) -> list[int]:
    """Return the tokens of a prompt behind those of its context. A mark of the beginning that every
    text gets stands in front of all, and so not here."""
    if isinstance(prompt, InfillPrompt):
        raise bad_request("context", "context has no place before a prompt with a gap to fill")
    is_marked = vocabulary.adds_bos and not isinstance(prompt, TokenPrompt)
    begins_with_mark = is_marked and tokens[:1] == [vocabulary.bos_token]
    return _checked(context, vocabulary, "context") + tokens[begins_with_mark:]


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


def _tokens_with_media(text: str, vocabulary: Vocabulary) -> list[int]:
    """One ``MEDIA_TOKEN`` for each medium; what stands between them is tokenised by itself, as
    llama.cpp does it."""
    tokens: list[int] = []
    for number, part in enumerate(texts_between(text)):
        if number:
            tokens.append(MEDIA_TOKEN)
        tokens += vocabulary.tokenize_part(part)
    return vocabulary.with_bos(tokens)


def _checked(tokens: Sequence[int], vocabulary: Vocabulary, name: str) -> list[int]:
    for place, token in enumerate(tokens):
        if not 0 <= token < vocabulary.n_tokens:
            raise bad_request(
                f"{name}[{place}]",
                f"{name}[{place}]: token {token} is not one of the {vocabulary.n_tokens} tokens of "
                "this model",
            )
    if not tokens:
        raise bad_request(name, "tokens is empty, must have at least one")
    return list(tokens)


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
