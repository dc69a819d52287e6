"""Where the prompt ends and the answer begins, and how much of the answer the prompt contains."""

from __future__ import annotations

import attrs

from paddler_trio.language.answers.automaton import Automaton
from paddler_trio.language.answers.format_detection import format_of
from paddler_trio.language.answers.model_format import ModelFormat
from paddler_trio.language.answers.pieces import TokenClass
from paddler_trio.language.answers.turns import prompt_end
from paddler_trio.language.templates.chat_messages import text_of
from paddler_trio.language.templates.conversation import PreparedConversation
from paddler_trio.language.templates.token_escaping import unescaped
from paddler_trio.wire.trio.desired_state_extras import Markers
from paddler_trio.wire.trio.work import ConversationPrompt


@attrs.frozen
class AnswerStart:
    """How an answer begins: the model's format, and what its prompt leaves open.

    ``prompt_end`` is what the prompt says after the conversation: the answer's beginning as far as
    the template writes it. ``opening``: the class of the answer's first character.
    """

    form: ModelFormat
    prompt_end: str = ""
    opening: TokenClass = TokenClass.UNDETERMINABLE


def rendered_prompt(
    conversation: ConversationPrompt,
    prepared: PreparedConversation,
    markers: Markers | None = None,
) -> tuple[str, AnswerStart]:
    """The prompt of a conversation, control tokens in its messages escaped, and how its answer
    begins.

    Raises:
      ChatTemplateError: the template does not take the conversation.
    """
    form = format_of(prepared.model.template, markers)
    text = prepared.text(add_generation_prompt=conversation.add_generation_prompt)
    plain = unescaped(text)
    last_text = _last_text_before_answer(conversation)
    if conversation.continue_final_message:
        # The assistant's turn is open: all of it is the answer's beginning.
        end = plain.rpartition(last_text)[2] if last_text else ""
    elif conversation.add_generation_prompt:
        without = unescaped(prepared.text(add_generation_prompt=False))
        end = prompt_end(plain, without, form, last_text=last_text)
    else:
        end = ""
    automaton = Automaton(form.rules)
    automaton.begin_with(end)
    return text, AnswerStart(form, end, automaton.current)


def _last_text_before_answer(conversation: ConversationPrompt) -> str:
    """The text of the last message that is not the assistant's, as templates print it."""
    for message in reversed(conversation.messages):
        text = text_of(message.get("content")).strip()
        if message.get("role") != "assistant" and text:
            return text
    return ""
