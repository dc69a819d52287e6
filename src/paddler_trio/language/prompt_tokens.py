"""Lists of tokens that an engine is given: behind a context, around images, from nothing."""

from __future__ import annotations

from collections.abc import Sequence

from paddler_trio.language.images.image_parts import texts_between
from paddler_trio.language.refusal import bad_request
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.wire.engine.engine_pipe import IMAGE_TOKEN
from paddler_trio.wire.trio.work import InfillPrompt, Prompt, TextPrompt, TokenPrompt


def behind_context(
    context: Sequence[int], prompt: Prompt, tokens: list[int], vocabulary: Vocabulary
) -> list[int]:
    """Return the tokens of a prompt behind those of its context. A mark of the beginning that every
    text gets stands in front of all, and so not here."""
    if isinstance(prompt, InfillPrompt):
        raise bad_request("context", "context has no place before a prompt with a gap to fill")
    is_marked = vocabulary.adds_bos and not isinstance(prompt, TokenPrompt)
    begins_with_mark = is_marked and tokens[:1] == [vocabulary.bos_token]
    return checked_tokens(context, vocabulary, "context") + tokens[begins_with_mark:]


def checked_tokens(tokens: Sequence[int], vocabulary: Vocabulary, name: str) -> list[int]:
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


def tokens_with_images(text: str, vocabulary: Vocabulary) -> list[int]:
    """One ``IMAGE_TOKEN`` for each image; what stands between them is tokenised by itself, as
    llama.cpp does it."""
    tokens: list[int] = []
    for number, part in enumerate(texts_between(text)):
        if number:
            tokens.append(IMAGE_TOKEN)
        tokens += vocabulary.tokenize_part(part)
    return vocabulary.with_bos(tokens)


def beginning(prompt: Prompt, vocabulary: Vocabulary) -> list[int]:
    """Return what every text comes after, as the model was trained: the end of another if there is
    no mark of a beginning. Only a plain text may be empty."""
    marks = (vocabulary.bos_token, vocabulary.eos_token)
    found = [mark for mark in marks if mark is not None][:1]
    if not found or not isinstance(prompt, TextPrompt):
        raise bad_request("prompt", "the prompt is empty: there is nothing to continue")
    return found
