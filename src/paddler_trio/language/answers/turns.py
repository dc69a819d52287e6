"""An answer begins and ends somewhere in the text around it, and the prompt may contain some of it.

The prompt may begin the answer: some templates open the reasoning section for the model, open and
close it at once to skip reasoning, or write the first half of a marker. And the raw text of an
answer may carry the marks that end a turn, which are for the server and not for a reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import attrs

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.answers.automaton import Automaton, TokenClass
from paddler_trio.language.answers.format_detection import common_start, format_of
from paddler_trio.language.answers.model_format import ModelFormat
from paddler_trio.language.templates.chat_messages import text_of
from paddler_trio.language.templates.chat_template import ChatTemplate
from paddler_trio.language.templates.conversation import PreparedConversation
from paddler_trio.language.templates.token_escaping import unescaped
from paddler_trio.wire.trio.desired_state_extras import Markers
from paddler_trio.wire.trio.work import ConversationPrompt


@attrs.frozen
class AnswerStart:
    """An answer begins in the model's format, with what its prompt leaves open.

    ``prompt_end`` is the prompt after the conversation: the answer's beginning as far as
    the template writes it. ``opening``: the class of the answer's first character.
    """

    form: ModelFormat
    prompt_end: str = ""
    opening: TokenClass = TokenClass.UNDETERMINABLE


def rendered_prompt(
    conversation: ConversationPrompt, prepared: PreparedConversation, markers: Markers | None = None
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
        end = _open_turn(plain, conversation.messages[-1], last_text)
    elif conversation.add_generation_prompt:
        without = unescaped(prepared.text(add_generation_prompt=False))
        end = prompt_end(plain, without, form, last_text=last_text)
    else:
        end = ""
    automaton = Automaton(form.rules)
    automaton.begin_with(end)
    is_opened = automaton.current is TokenClass.REASONING
    if is_opened and conversation.thinking is False and not conversation.continue_final_message:
        # The template opens the section and has no switch for it.
        closing = f"{form.reasoning_close or ''}{form.turn_open}"
        text, end = text + closing, end + closing
        automaton.begin_with(closing)
    return text, AnswerStart(form, end, automaton.current)


def _open_turn(plain: str, message: Mapping[str, object], last_text: str) -> str:
    """The prompt behind ``last_text``, which may stand in the unfinished message, too."""
    if not last_text:
        return ""
    begin = len(plain)
    for text in (text_of(message.get("content")), message.get("reasoning_content")):
        own = text.strip() if isinstance(text, str) else ""
        found = plain.rfind(own, 0, begin) if own else -1
        begin = begin if found < 0 else found
    before = plain.rfind(last_text, 0, begin)
    return plain[before + len(last_text) :] if before >= 0 else plain


def _last_text_before_answer(conversation: ConversationPrompt) -> str:
    """The text of the last message that is not the assistant's, as templates print it."""
    for message in reversed(conversation.messages):
        text = text_of(message.get("content")).strip()
        if message.get("role") != "assistant" and text:
            return text
    return ""


_TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|endofturn|>",
    "[|endofturn|]",
    "<end_of_turn>",
    "<turn|>",
    "<eos>",
    "</s>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 - as DeepSeek writes it
    "<|END_OF_TURN_TOKEN|>",
    "<|role_end|>",
    "<|assistant_end|>",
    "<seed:eos>",
    "[e~[",
    "<SPECIAL_12>",
    "<end_of_sentence>",
    "<|plamo:tag|>",
    "<|im:end|>",
    "<|message_sep|>",
    "<|user|>",
    "<|observation|>",
)
_WITHOUT_MENTION = (
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001
    "<|eot_id|>",
    "<eos>",
)
"""What ``eos_token`` stands for in templates that do not write it out."""
_PROBE_TEXT = "zqxprobe"
_MARK = re.compile(r"\s*([<\[〈][^\s<>\[\]〈〉]{1,40}[>\]〉])")


def prompt_end(with_prompt: str, without: str, form: ModelFormat, *, last_text: str = "") -> str:
    """The end of the prompt, after the conversation: the generation prompt, or its equivalent.

    Only that is looked at, so that markers inside a message decide nothing.

    Args:
      with_prompt: the conversation rendered with its generation prompt.
      without: the same without.
      last_text: the text of the last message; where a template opens the answer's turn in any
        case, what follows that text is the prompt's end.
    """
    start = len(without)
    if not with_prompt.startswith(without):
        # The template ends the conversation differently without a generation prompt. Go back to
        # the first difference, and further to the start of a marker that it may have cut.
        start = len(common_start(with_prompt, without))
        start = _start_of_cut_marker(with_prompt, start, form)
    elif start == len(with_prompt) and last_text and last_text in with_prompt:
        start = with_prompt.rindex(last_text) + len(last_text)
    return with_prompt[start:]


def _start_of_cut_marker(text: str, start: int, form: ModelFormat) -> int:
    found = start
    for marker in form.rules.texts:
        for begin in range(max(0, start - len(marker) + 1), start):
            if text.startswith(marker, begin):
                found = min(found, begin)
    return found


def turn_ends_of(template: ChatTemplate, form: ModelFormat, *, eos_token: str = "") -> list[str]:
    """The texts that end a turn of this model, as far as they are not markers of its format."""
    source = template.source
    ends = {end for end in _TURN_ENDS if end in source}
    if "<|eot_id|>" in ends:
        ends.add("<|eom_id|>")  # of the same vocabulary, behind a call that is to be answered
    if "eos_token" in source:
        ends.update(_WITHOUT_MENTION)
    if eos_token:
        ends.add(eos_token)
    user = {"role": "user", "content": "Hello."}
    assistant = {"role": "assistant", "content": _PROBE_TEXT}
    try:
        rendered = template.render(
            [user, assistant],
            add_generation_prompt=False,
            enable_thinking=None,
            bos_token="",
            eos_token=eos_token,
        )
    except ChatTemplateError:
        rendered = ""  # one that cannot render this is read by its source alone
    mark = _MARK.match(rendered.rpartition(_PROBE_TEXT)[2])
    if mark is not None and _PROBE_TEXT in rendered:
        ends.add(mark[1])
    return sorted(ends - form.rules.texts, key=len, reverse=True)


def without_turn_end(answer: str, ends: Iterable[str]) -> str:
    """The answer without the marks that end its turn, and what blanks stand between them."""
    ends = tuple(ends)
    while True:
        stripped = answer.rstrip()
        found = next((end for end in ends if stripped.endswith(end)), None)
        if found is None:
            return answer
        answer = stripped[: -len(found)]
