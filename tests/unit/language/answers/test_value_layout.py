"""A value comes back as it was, line breaks at its ends included: templates say what is layout."""

from __future__ import annotations

from typing import Any

from llama_source import template_names, template_text
from paddler_trio.language.answers.call_syntax import TaggedCalls
from paddler_trio.language.answers.turns import rendered_prompt, turn_ends_of, without_turn_end
from paddler_trio.language.answers.whole_answer import AnswerReader
from paddler_trio.language.templates.conversation import (
    ModelTemplate,
    ModelTemplates,
    prepare_conversation,
)
from paddler_trio.language.templates.token_escaping import unescaped
from paddler_trio.wire.trio.work import ConversationPrompt

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "edit",
        "description": "Does what its name says.",
        "parameters": {
            "type": "object",
            "properties": {
                name: {"type": "string", "description": "A text."} for name in ("path", "text")
            },
            "required": ["path", "text"],
        },
    },
}
VALUES = [
    "",
    " ",
    "\n",
    "\n\n",
    "\n    return 1",
    "\n    return 1\n",
    "x\n",
    "x\n\n",
    "  x",
    "\tx \n",
    "a\n\n\nb",
    "<parameter=x>\n</parameter>",
]


def written_call(
    templates: ModelTemplates, arguments: dict[str, object]
) -> tuple[AnswerReader, str]:
    """A reader of an answer with this call, and what stands behind the prompt of that answer."""
    user = {"role": "user", "content": "Edit it."}
    function = {"name": "edit", "arguments": arguments}
    calls = [{"id": "abcdefgh1", "type": "function", "function": function}]
    turn = {"role": "assistant", "content": "", "tool_calls": calls}
    question = ConversationPrompt(messages=(user,), tools=(TOOL,), thinking=False)
    answered = ConversationPrompt(
        messages=(user, turn), tools=(TOOL,), thinking=False, add_generation_prompt=False
    )
    text, start = rendered_prompt(question, prepare_conversation(question, templates))
    prompt = unescaped(text)
    whole = unescaped(prepare_conversation(answered, templates).text(add_generation_prompt=False))
    end = start.prompt_end
    if not whole.startswith(prompt):  # an earlier turn may begin otherwise than an answer
        prompt, end = prompt.removesuffix(end), ""
    assert whole.startswith(prompt)
    reader = AnswerReader(start.form, [TOOL], prompt_end=end)
    ends = turn_ends_of(templates.default.template, start.form)
    return reader, without_turn_end(whole[len(prompt) :], ends)


def test_a_value_comes_back_exactly() -> None:
    tagged = 0
    for name in template_names():
        model = ModelTemplate.compile(template_text(name))
        if model.calls is None or not isinstance(model.calls.syntax, TaggedCalls):
            continue
        tagged += 1
        templates = ModelTemplates(default=model, bos_token="<s>", eos_token="</s>")
        pairs = [("m", value) for value in VALUES] + [(value, "m") for value in VALUES]
        for path, text in pairs:
            arguments = {"path": path, "text": text}
            reader, raw = written_call(templates, dict(arguments))
            for character in raw:
                reader.feed(character)
            answer = reader.end()
            assert [call.arguments for call in answer.tool_calls] == [arguments], (name, raw)
            assert answer.problems == (), name
    assert tagged >= 19
