"""Questions about the model that is served: tokens of a text, the text of tokens, the prompt that a
conversation becomes, and what the model is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import assert_never

from paddler_trio.errors import PaddlerError
from paddler_trio.language.answers.format_detection import format_of
from paddler_trio.language.images.image_parts import readable
from paddler_trio.language.model_language import Language
from paddler_trio.language.prompt_tokens import tokens_of
from paddler_trio.language.prompting import rendering_of
from paddler_trio.language.refusal import Refusal
from paddler_trio.language.sounds.sounds import CAN_DECODE
from paddler_trio.language.templates.token_escaping import unescaped
from paddler_trio.language.vocabulary import TokenizationError, Vocabulary
from paddler_trio.processes.preparation.template_preview import previewed
from paddler_trio.wire.engine.engine_pipe import Ready
from paddler_trio.wire.trio.model_questions import (
    DescribeModel,
    Detokenize,
    PreviewTemplate,
    Question,
    RenderPrompt,
    Tokenize,
)
from paddler_trio.wire.trio.work import InfillPrompt, Prompt, TokenPrompt

MAX_TEXT_CHARS = 4_000_000
MAX_TOKENS = 2_000_000
MAX_METADATA = 256
"""The most entries of what a file says of itself."""
MAX_METADATA_CHARS = 512
"""The size of each, its name included."""


class UnanswerableError(PaddlerError):
    """There is no answer; ``code`` mirrors HTTP status numbers."""

    def __init__(self, code: int, problem: str) -> None:
        super().__init__(problem)
        self.code = code


def answer_to(question: Question, language: Language, ready: Ready) -> dict[str, object]:
    """Return the answer as plain JSON; its shape stands beside each question's class."""
    vocabulary = language.vocabulary
    try:
        match question:
            case Tokenize():
                return _tokenize(question, vocabulary)
            case Detokenize(tokens=tokens, with_pieces=with_pieces):
                _limit("tokens", len(tokens), MAX_TOKENS, "tokens")
                if with_pieces:
                    return {"pieces": [_piece(token, vocabulary) for token in tokens]}
                return {"text": _text_of(tokens, vocabulary)}
            case RenderPrompt(prompt=prompt):
                return _render(prompt, language, ready)
            case PreviewTemplate():
                return previewed(question, language, senses=ready.senses)
            case DescribeModel():
                return _describe(language, ready)
    except TokenizationError as error:
        raise UnanswerableError(400, str(error)) from error
    except Refusal as refusal:
        code = 501 if "InfillNotSupported" in refusal.result else 400
        raise UnanswerableError(code, _words(refusal)) from refusal
    assert_never(question)


def _tokenize(question: Tokenize, vocabulary: Vocabulary) -> dict[str, object]:
    _limit("text", len(question.text), MAX_TEXT_CHARS, "characters")
    tokens = vocabulary.tokenize(
        question.text, add_special=question.add_special, parse_special=question.parse_special
    )
    if not question.with_pieces:
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _piece(token, vocabulary)} for token in tokens]}


def _render(prompt: Prompt, language: Language, ready: Ready) -> dict[str, object]:
    rendering = rendering_of(prompt, language, senses=ready.senses)
    tokens = tokens_of(prompt, rendering, language, slot_cells=ready.cells)
    if isinstance(prompt, TokenPrompt | InfillPrompt):
        return {"prompt": _text_of(tokens, language.vocabulary), "num_tokens": len(tokens)}
    return {"prompt": readable(unescaped(rendering.text)), "num_tokens": len(tokens)}


def _text_of(tokens: Sequence[int], vocabulary: Vocabulary) -> str:
    pieces = (vocabulary.token_bytes(token, special=True) for token in tokens)
    return b"".join(pieces).decode("utf-8", errors="replace")


def _piece(token: int, vocabulary: Vocabulary) -> object:
    """Return a token's text, or a list of its bytes where they are only a part of a character."""
    piece = vocabulary.token_bytes(token, special=True)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _describe(language: Language, ready: Ready) -> dict[str, object]:
    vocabulary = language.vocabulary
    embedding = ready.embedding
    template = language.templates.default.template
    capabilities = language.templates.default.capabilities
    return {
        "name": vocabulary.metadata.get("general.name") or vocabulary.path.stem,
        "size_bytes": vocabulary.size_bytes,
        "n_params": vocabulary.n_params,
        "n_vocab": vocabulary.n_tokens,
        "n_ctx": ready.cells,
        "n_ctx_train": ready.n_ctx_train,
        "n_embd": vocabulary.n_embd,
        "vocab_type": vocabulary.kind,
        "bos_token": vocabulary.bos_text,
        "eos_token": vocabulary.eos_text,
        "end_tokens": list(vocabulary.end_tokens),
        "chat_template": vocabulary.chat_template() or "",
        "metadata": dict(islice(_short_texts(vocabulary.metadata), MAX_METADATA)),
        "can_embed": embedding is not None and embedding.pooling != "Rank",
        "can_rank": embedding is not None and embedding.pooling == "Rank",
        "can_see": ready.senses.sees_images,
        "can_hear": CAN_DECODE and ready.senses.sound_rate > 0,
        "has_thinking": format_of(template, language.markers).reasons,
        "has_tools": capabilities.tools,
        "chat_template_caps": {
            "supports_string_content": "user" in capabilities.string_content,
            "supports_typed_content": "user" in capabilities.parts_content,
            "supports_tools": capabilities.tools,
            "supports_tool_calls": capabilities.tool_calls,
            "supports_parallel_tool_calls": capabilities.tool_calls and capabilities.several_calls,
            "supports_system_role": capabilities.system_role,
            "supports_object_arguments": capabilities.arguments != "string",
            "supports_reasoning_effort": "reasoning_effort" in template.variables,
        },
    }


def _short_texts(metadata: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return what is no template, no licence's whole text and no other prose."""
    for name, text in metadata.items():
        if len(name) + len(text) <= MAX_METADATA_CHARS:
            yield name, text


def _limit(name: str, size: int, limit: int, unit: str) -> None:
    if size > limit:
        raise UnanswerableError(400, f"{name} has {size} {unit}, the limit is {limit}")


def _words(refusal: Refusal) -> str:
    ((_, content),) = refusal.result.items()
    return str(content["message"]) if isinstance(content, dict) else str(content)
