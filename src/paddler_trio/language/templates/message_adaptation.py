"""Messages in the form that a template in force can express.

The rule: what the template prints without loss stays as it is, so that the prompt is the one
Hugging Face renders. Only what it would refuse, lose, or print as Python is written in another way,
the way people write it by hand for such models:

======================================  ======================================================
the template lacks                      instead
======================================  ======================================================
lists of content parts                  the texts of the parts, one a line
contents that are strings               a list with one part
the role ``developer``                  ``system``
the role ``system``, or takes it at     the text at the top of the question behind it, else in a
the beginning alone                     turn of the user at its place
several system texts                    one, with all of them
arguments as JSON text, or as objects   the other form
calls without a content                 an empty content, or null
a content beside calls                  a message of its own before them
an answer without content and calls     an empty content
several calls of one message            a message for each, with its result behind it
calls with any id                       ids of nine letters and digits
results without the tool's name         the name of the call
calls                                   written in the assistant's content, as the model writes
                                        them, else one line of JSON for each
the role ``tool``, or results that      a turn of the user with the result
no call asked for
a question behind a result              an empty answer between them, or the question in the result
two turns of one role in succession     one turn
tools                                   a system text that describes them
tools without a description, without    empty ones
parameters, without their properties
a variable that switches thinking       the word for it in the system message, if it reads one
======================================  ======================================================

The order of turns is the matter of ``turn_adaptation``, contents and arguments that of this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.answers.model_format import CallFormat
from paddler_trio.language.templates.calls_in_words import tools_in_words
from paddler_trio.language.templates.capabilities import CallContent, TemplateCapabilities
from paddler_trio.language.templates.chat_messages import IMAGE_PARTS, Message, text_of
from paddler_trio.language.templates.thinking_switch import THINKING_WORDS
from paddler_trio.language.templates.turn_adaptation import adapt_turns, calls_in, function_of

_OTHER_CONTENTS: Mapping[CallContent, str | None] = {"empty": "", "null": None}


def adapt(
    messages: Sequence[Message],
    capabilities: TemplateCapabilities,
    *,
    thinking: bool | None = None,
    tools: Sequence[Message] = (),
    calls: CallFormat | None = None,
) -> list[Message]:
    """``messages``, as ``chat_messages.read_messages`` gives them, adapted.

    Args:
      thinking: whether the model shall think; None leaves it to the template.
      tools: what is told in words if the template tells of no tools.
      calls: how the model writes calls; None if that is not known.
    """
    adapted = list(messages)
    if not capabilities.developer_role:
        adapted = [
            {**each, "role": "system"} if each["role"] == "developer" else each for each in adapted
        ]
    if capabilities.tool_calls and capabilities.arguments == "string":
        adapted = [_with_written_arguments(each) for each in adapted]
    if tools and not capabilities.tools:
        adapted = _with_system_text(adapted, tools_in_words(tools, calls), "\n\n")
    if thinking is not None and capabilities.thinking is None and capabilities.thinking_words:
        adapted = _with_system_text(adapted, THINKING_WORDS[thinking], "\n")
    turns = adapt_turns(adapted, capabilities, calls)
    return [_content(_silent(each, capabilities), capabilities) for each in turns]


def read_arguments(
    messages: Sequence[Message], capabilities: TemplateCapabilities
) -> list[Message]:
    """The messages with the arguments of their calls as objects, where they are needed as such.

    It comes before texts are escaped: JSON can spell a control token in ways that nobody finds in
    its text.

    Raises:
      ChatTemplateError: arguments are no JSON object, which the template needs.
    """
    if capabilities.tool_calls and capabilities.arguments != "other":
        return list(messages)
    return [
        _with_objects(each, capabilities, f"messages[{index}].tool_calls")
        if calls_in(each)
        else each
        for index, each in enumerate(messages)
    ]


def adapt_tools(tools: Sequence[Message], capabilities: TemplateCapabilities) -> list[Message]:
    """Function tools, with what the template refuses to be without."""
    return [_tool(tool, capabilities) for tool in tools] if capabilities.tool_needs else list(tools)


def _tool(tool: Message, capabilities: TemplateCapabilities) -> Message:
    function = tool["function"]
    assert isinstance(function, Mapping)  # read_tools checked it
    needs = capabilities.tool_needs
    filled = dict(function)
    if "description" in needs and filled.get("description") is None:
        filled["description"] = ""
    parameters = filled.get("parameters")
    if needs & {"parameters", "properties"} and parameters is None:
        parameters = {"type": "object", "properties": {}}
    if "properties" in needs and isinstance(parameters, Mapping):
        parameters = {**parameters, "properties": parameters.get("properties", {})}
    if parameters is not None:
        filled["parameters"] = parameters
    return {**tool, "function": filled}


def _with_system_text(messages: Sequence[Message], text: str, joint: str) -> list[Message]:
    """The text at the end of the first message, if that is the system's, else in front of it."""
    if not messages or messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    first = messages[0]
    content = first.get("content")
    if isinstance(content, list):
        added: object = [*content, {"type": "text", "text": text}]
    else:
        added = f"{content}{joint}{text}" if content else text
    return [{**first, "content": added}, *messages[1:]]


# ------------------------------------------------------------------------------------- contents


def _content(message: Message, capabilities: TemplateCapabilities) -> Message:
    content = message.get("content")
    role = _kind(message)
    if isinstance(content, str):
        if role in capabilities.parts_content and role not in capabilities.string_content:
            return {**message, "content": [{"type": "text", "text": content}]}
    elif isinstance(content, list) and role not in capabilities.parts_content:
        shows_images = any(part.get("type") in IMAGE_PARTS for part in content)
        if not shows_images and role in capabilities.string_content:
            return {**message, "content": text_of(content)}
    return message


def _kind(message: Message) -> str:
    """The role whose contents were probed; any other is like a user's."""
    role = str(message["role"])
    if role == "developer":
        return "system"
    return role if role in ("system", "assistant", "tool") else "user"


# ---------------------------------------------------------------------------------------- calls


def _with_objects(message: Message, capabilities: TemplateCapabilities, path: str) -> Message:
    calls: list[Message] = []
    for number, call in enumerate(calls_in(message)):
        arguments = function_of(call).get("arguments")
        if isinstance(arguments, str):
            place = f"{path}[{number}]{'.function' if 'function' in call else ''}.arguments"
            try:
                arguments = _object_of(arguments, place)
            except ChatTemplateError:
                if capabilities.tool_calls:
                    raise
        calls.append(_with_arguments(call, arguments))
    return {**message, "tool_calls": calls}


def _with_written_arguments(message: Message) -> Message:
    calls: list[Message] = []
    for call in calls_in(message):
        arguments = function_of(call).get("arguments")
        if isinstance(arguments, Mapping):
            call = _with_arguments(call, json.dumps(arguments, ensure_ascii=False))
        calls.append(call)
    return {**message, "tool_calls": calls} if calls else message


def _with_arguments(call: Message, arguments: object) -> Message:
    if arguments is None:
        return call
    changed = {**function_of(call), "arguments": arguments}
    return {**call, "function": changed} if "function" in call else changed


def _silent(message: Message, capabilities: TemplateCapabilities) -> Message:
    """A message of the assistant without content has the one that the template copes with."""
    if message["role"] != "assistant" or message.get("content"):
        return message
    if not calls_in(message):
        is_fine = "content" in message or capabilities.silent_answers
        return message if is_fine else {**message, "content": ""}
    form: CallContent = "empty" if "content" in message else "missing"
    shown_with = capabilities.call_contents
    if form in capabilities.refused_contents or (shown_with and form not in shown_with):
        fine = [each for each in _OTHER_CONTENTS if each not in capabilities.refused_contents]
        shown = [each for each in fine if each in capabilities.call_contents]
        for other in (shown or fine)[:1]:
            return {**message, "content": _OTHER_CONTENTS[other]}
    return message


def _object_of(text: str, path: str) -> Mapping[str, object]:
    if not text.strip():
        return {}
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ChatTemplateError(f"{path}: not JSON, which the template needs: {error}") from error
    if not isinstance(arguments, dict):
        raise ChatTemplateError(f"{path}: not a JSON object, which the template needs")
    return arguments
