"""The text a conversation becomes, and how the answer to it begins."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import attrs

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.answers.automaton import Automaton, SectionRules, TokenClass
from paddler_trio.language.answers.bare_calls import probe_of
from paddler_trio.language.answers.format_detection import format_of
from paddler_trio.language.answers.model_format import ModelFormat
from paddler_trio.language.answers.turns import AnswerStart, rendered_prompt
from paddler_trio.language.images.image_parts import check_senses, media_in, show_media
from paddler_trio.language.model_language import Language
from paddler_trio.language.refusal import Refusal, bad_request
from paddler_trio.language.templates.chat_messages import has_media
from paddler_trio.language.templates.conversation import prepare_conversation
from paddler_trio.wire.engine.media import NO_SENSES, Medium, Senses
from paddler_trio.wire.trio.work import ConversationPrompt

NO_RULES = SectionRules({})
TOOL_CHOICES = ("auto", "none", "required", "function")


@attrs.frozen
class Rendering:
    """``text`` has an escape mark wherever a message must not become a control token.

    ``start`` is how the answer begins, for its grammar; ``classifier`` reads its sections.
    ``media`` are in the order of their markers in the text.
    """

    text: str
    start: AnswerStart
    classifier: Automaton
    media: tuple[Medium, ...] = ()


def plain(text: str, language: Language, *, as_paddler: bool = False) -> Rendering:
    """A text that is continued as it stands, and so is its answer: all of it is content.

    ``as_paddler``: the answer has sections, and what it begins with is unknown.
    """
    form = format_of(language.templates.default.template, language.markers)
    classifier = Automaton(form.rules) if as_paddler else Automaton(NO_RULES, TokenClass.CONTENT)
    return Rendering(text, AnswerStart(form), classifier)


def render(
    conversation: ConversationPrompt,
    language: Language,
    *,
    as_paddler: bool = False,
    senses: Senses = NO_SENSES,
    has_form: bool = False,
) -> Rendering:
    """Through the model's template; with ``tool_choice`` none the prompt offers no tools.

    ``as_paddler``: a call that is opened within reasoning is one, whatever the family does.
    ``has_form``: the content is bound by a grammar.

    Raises:
      Refusal: a field that makes no sense, media that cannot be shown, or what the template
        refused.
    """
    _check(conversation)
    if conversation.tool_choice == "none" and conversation.tools:
        conversation = attrs.evolve(conversation, tools=())
    media: tuple[Medium, ...] = ()
    if has_media(conversation.messages):
        check_senses(conversation, senses)
        fit = language.parameters.image_resize_to_fit
        shown = show_media(conversation, fit=fit, senses=senses)
        conversation, media = shown.conversation, shown.media
    try:
        prepared = prepare_conversation(conversation, language.templates)
        text, start = rendered_prompt(conversation, prepared, language.markers)
    except ChatTemplateError as error:
        raise Refusal("ChatTemplateError", str(error)) from error
    return Rendering(
        text,
        start,
        _classifier(conversation, start, as_paddler=as_paddler, has_form=has_form),
        media_in(text, media) if media else (),
    )


@lru_cache(maxsize=16)  # the templates in force
def paddler_form_of(form: ModelFormat) -> ModelFormat:
    """Return the form in which a call that is opened within reasoning is one."""
    return attrs.evolve(form, calls_end_reasoning=True)


def _classifier(
    conversation: ConversationPrompt, start: AnswerStart, *, as_paddler: bool, has_form: bool
) -> Automaton:
    """Classifies the sections of the answer, from the place where the prompt leaves it."""
    form = start.form
    is_raw = conversation.raw_reasoning
    shows_opening = is_raw and not conversation.continue_final_message
    if as_paddler:
        rules = paddler_form_of(form).rules
    elif not conversation.may_call:
        rules = form.rules_of_form if has_form else form.rules_without_calls
        classifier = Automaton(rules, shows_reasoning_marks=is_raw)
        classifier.begin_with(start.prompt_end, shows_opening=shows_opening)
        return classifier
    else:
        rules = form.rules
    functions = (tool.get("function") for tool in conversation.tools)
    names = (function.get("name") for function in functions if isinstance(function, Mapping))
    probe = probe_of(start.form, [name for name in names if isinstance(name, str)])
    classifier = Automaton(rules, probe=probe, shows_reasoning_marks=is_raw)
    classifier.begin_with(start.prompt_end, shows_opening=shows_opening)
    return classifier


def _check(conversation: ConversationPrompt) -> None:
    choice, name = conversation.tool_choice, conversation.tool_name
    if choice not in TOOL_CHOICES:
        raise bad_request(
            "prompt.tool_choice",
            f"tool_choice is {choice[:80]!r}, must be one of {', '.join(TOOL_CHOICES)}",
        )
    if choice in ("required", "function") and not conversation.tools:
        raise bad_request(
            "prompt.tool_choice", f"tool_choice is {choice!r}, but there are no tools"
        )
    if (choice == "function") != (name is not None):
        raise bad_request(
            "prompt.tool_name", "tool_name goes with tool_choice 'function', and only with it"
        )
    if conversation.max_reasoning_tokens is not None and conversation.max_reasoning_tokens < 0:
        raise bad_request(
            "prompt.max_reasoning_tokens",
            f"max_reasoning_tokens is {conversation.max_reasoning_tokens}, must be at least 0",
        )
