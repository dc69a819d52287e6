"""The prompt that a conversation would become with another chat template."""

from __future__ import annotations

import attrs

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.images.image_parts import readable
from paddler_trio.language.model_language import Language
from paddler_trio.language.prompt_tokens import tokens_of
from paddler_trio.language.prompting import rendering_of
from paddler_trio.language.refusal import Refusal
from paddler_trio.language.templates.conversation import ModelTemplate
from paddler_trio.language.templates.token_escaping import unescaped
from paddler_trio.wire.engine.media import Senses
from paddler_trio.wire.trio.model_questions import PreviewTemplate
from paddler_trio.wire.trio.work import ConversationPrompt


def previewed(
    question: PreviewTemplate, language: Language, *, senses: Senses
) -> dict[str, object]:
    """Return the answer as plain JSON; its shape stands beside ``PreviewTemplate``. Refusal for
    what is not the template's doing."""
    conversation = ConversationPrompt(
        messages=question.messages, tools=question.tools, thinking=question.thinking
    )
    try:
        if question.chat_template is not None:
            language = _with_template(language, question.chat_template)
        rendering = rendering_of(conversation, language, senses=senses)
    except ChatTemplateError as error:
        return _problem(error)
    except Refusal as refusal:
        if isinstance(refusal.__cause__, ChatTemplateError):
            return _problem(refusal.__cause__)
        raise
    tokens = tokens_of(conversation, rendering, language)
    return {"prompt": readable(unescaped(rendering.text)), "num_tokens": len(tokens)}


def _with_template(language: Language, source: str) -> Language:
    """Return the language with a template as an override by the operator: it takes the place of
    every template of the model."""
    default = ModelTemplate.compile(source)
    return attrs.evolve(
        language, templates=attrs.evolve(language.templates, default=default, named={})
    )


def _problem(error: ChatTemplateError) -> dict[str, object]:
    text, line = str(error), error.line
    if line is not None and f"line {line}:" not in text:
        text = f"{text} (line {line})"
    return {"problem": text, "line": line}
