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
the role ``system``                     the text at the top of the first user turn
arguments as JSON text, or as objects   the other form
calls without a content                 an empty content, or null
an answer without content and calls     an empty content
the role ``tool``                       a user turn with the result; if calls are lost as well,
                                        one line of JSON for each in the assistant's content
tools without a description, without    empty ones
parameters, without their properties
a variable that switches thinking       the word for it in the system message, if it reads one
======================================  ======================================================

A template that refuses two turns of one role in succession gets turns that were made here joined
with their neighbours. Turns that a client sent are never joined: the template reports the error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.templates.capabilities import (
    THINKING_WORDS,
    CallContent,
    TemplateCapabilities,
)
from paddler_trio.language.templates.chat_messages import IMAGE_PARTS, Message, text_of

_JOINT = "\n\n"
_OTHER_CONTENTS: Mapping[CallContent, str | None] = {"empty": "", "null": None}


def adapt(
    messages: Sequence[Message], capabilities: TemplateCapabilities, *, thinking: bool | None = None
) -> list[Message]:
    """``messages``, as ``chat_messages.read_messages`` gives them, adapted.

    Args:
      thinking: whether the model shall think; None leaves it to the template.

    Raises:
      ChatTemplateError: arguments of a call are no JSON object, which the template needs.
    """
    adapted = list(messages)
    if not capabilities.developer_role:
        adapted = [
            {**each, "role": "system"} if each["role"] == "developer" else each for each in adapted
        ]
    if thinking is not None and capabilities.thinking is None and capabilities.thinking_words:
        adapted = _with_word(adapted, THINKING_WORDS[thinking])
    adapted = [_calls(message, capabilities, index) for index, message in enumerate(adapted)]
    if not capabilities.tool_role:
        adapted = _results_as_user(adapted, joins=capabilities.alternates)
    if not capabilities.system_role:
        adapted = _system_into_user(adapted, joins=capabilities.alternates)
    return [_content(message, capabilities) for message in adapted]


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


def _with_word(messages: Sequence[Message], word: str) -> list[Message]:
    """The word at the end of the first message, if that is the system's, else in front of it."""
    if not messages or messages[0]["role"] != "system":
        return [{"role": "system", "content": word}, *messages]
    first = messages[0]
    content = first.get("content")
    if isinstance(content, list):
        added: object = [*content, {"type": "text", "text": word}]
    else:
        added = f"{content}\n{word}" if content else word
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


def _calls(message: Message, capabilities: TemplateCapabilities, index: int) -> Message:
    calls = message.get("tool_calls")
    if message["role"] != "assistant":
        return message
    if not isinstance(calls, list):
        is_fine = "content" in message or capabilities.silent_answers
        return message if is_fine else {**message, "content": ""}
    if not capabilities.tool_calls and not capabilities.tool_role:
        texts = [text_of(message.get("content"))] if message.get("content") else []
        lines = [_call_line(call) for call in calls]
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        return {**rest, "content": "\n".join([*texts, *lines])}
    path = f"messages[{index}].tool_calls"
    adapted = {
        **message,
        "tool_calls": [
            _with_arguments(call, capabilities, f"{path}[{number}]")
            for number, call in enumerate(calls)
        ],
    }
    form: CallContent = "empty" if "content" in adapted else "missing"
    if not adapted.get("content") and form in capabilities.refused_contents:
        fine = [each for each in _OTHER_CONTENTS if each not in capabilities.refused_contents]
        shown = [each for each in fine if each in capabilities.call_contents]
        for other in (shown or fine)[:1]:
            adapted["content"] = _OTHER_CONTENTS[other]
    return adapted


def _with_arguments(
    call: Mapping[str, object], capabilities: TemplateCapabilities, path: str
) -> Message:
    flat = "function" not in call
    function = call if flat else call["function"]
    assert isinstance(function, Mapping)  # read_messages checked it
    arguments = function.get("arguments")
    if isinstance(arguments, str) and capabilities.arguments == "other":
        place = f"{path}{'' if flat else '.function'}.arguments"
        changed = {**function, "arguments": _read_arguments(arguments, place)}
    elif isinstance(arguments, Mapping) and capabilities.arguments == "string":
        changed = {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}
    else:
        return dict(call)
    return changed if flat else {**call, "function": changed}


def _read_arguments(text: str, path: str) -> Mapping[str, object]:
    if not text.strip():
        return {}
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ChatTemplateError(f"{path}: not JSON, which the template needs: {error}") from error
    if not isinstance(arguments, dict):
        raise ChatTemplateError(f"{path}: not a JSON object, which the template needs")
    return arguments


def _call_line(call: Mapping[str, object]) -> str:
    function = call.get("function", call)
    assert isinstance(function, Mapping)  # read_messages checked it
    arguments = function.get("arguments", {})
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {written or "{}"}}}'


# ---------------------------------------------------------------------------------------- roles


def _results_as_user(messages: Sequence[Message], *, joins: bool) -> list[Message]:
    adapted: list[Message] = []
    last_has_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        made = message
        if is_result:
            name = message.get("name")
            of = f" of {name}" if isinstance(name, str) else ""
            text = text_of(message.get("content"))
            made = {"role": "user", "content": f"Result{of}:\n{text}"}
        is_neighbour = made["role"] == "user" and _ends_with_user(adapted)
        if joins and is_neighbour and (is_result or last_has_result):
            adapted[-1] = _joined(adapted[-1], made.get("content"))
        else:
            adapted.append(made)
        last_has_result = is_result or (last_has_result and made["role"] == "user")
    return adapted


def _system_into_user(messages: Sequence[Message], *, joins: bool) -> list[Message]:
    adapted: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(text_of(message.get("content")))
        elif message["role"] == "user" and waiting:
            adapted.append({**message, "content": _on_top(waiting, message.get("content"))})
            waiting = []
        else:
            adapted.append(message)
    if waiting and joins and _ends_with_user(adapted):
        adapted[-1] = _joined(adapted[-1], _JOINT.join(waiting))
    elif waiting:
        adapted.append({"role": "user", "content": _JOINT.join(waiting)})
    return adapted


def _ends_with_user(messages: Sequence[Message]) -> bool:
    return bool(messages) and messages[-1]["role"] == "user"


def _joined(message: Message, content: object) -> Message:
    """``message`` with another content behind its own."""
    own = message.get("content")
    if isinstance(own, list) or isinstance(content, list):
        return {**message, "content": [*_parts(own), *_parts(content)]}
    return {**message, "content": _JOINT.join([text_of(own), text_of(content)])}


def _parts(content: object) -> list[object]:
    return content if isinstance(content, list) else [{"type": "text", "text": text_of(content)}]


def _on_top(texts: Sequence[str], content: object) -> object:
    if isinstance(content, list):
        return [{"type": "text", "text": _JOINT.join(texts)}, *content]
    return _JOINT.join([*texts, text_of(content)])
