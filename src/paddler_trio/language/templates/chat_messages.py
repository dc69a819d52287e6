"""Messages and tools as people send them: OpenAI's shape, checked and in one spelling.

Templates are programs: a message of the wrong shape would make them fail somewhere inside, or print
Python to the model. So shapes are checked here, with the path of the field, and what OpenAI and
others spell in several ways leaves in the one spelling that templates know:

* fields that are null are left out, as Hugging Face does it: templates ask ``is defined``;
* reasoning is ``reasoning_content`` (and ``thinking``, which some templates read), whatever of
  ``reasoning_content``, ``thinking`` and ``reasoning`` it came as;
* ``function_call`` and the role ``function`` are what they were before there were tools.

Unknown fields are for the template and pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paddler_trio.errors import ChatTemplateError
from paddler_trio.wire.shape import describe

MAX_MESSAGES = 100_000
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_TEXT_FIELDS = ("name", "tool_call_id", "reasoning_content", "reasoning")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
IMAGE_PARTS = frozenset({"image_url", "image"})

Message = dict[str, object]


def read_messages(values: object) -> list[Message]:
    """The messages of a conversation, checked and in one spelling; of none the template decides.

    Raises:
      ChatTemplateError: ``messages[i].field`` is not what it has to be.
    """
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ChatTemplateError(f"messages: expected an array, got {describe(values)}")
    if len(values) > MAX_MESSAGES:
        raise ChatTemplateError(f"messages: {len(values)} messages, the limit is {MAX_MESSAGES}")
    return [_message(each, f"messages[{index}]") for index, each in enumerate(values)]


def read_tools(values: object) -> list[Message]:
    """Function tools, checked; a bare function is wrapped as OpenAI does.

    Raises:
      ChatTemplateError: ``tools[i].field`` is not what it has to be.
    """
    if values is None:
        return []
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ChatTemplateError(f"tools: expected an array, got {describe(values)}")
    return [_tool(each, f"tools[{index}]") for index, each in enumerate(values)]


def read_documents(values: object) -> list[Message]:
    """Documents for retrieval: objects; what is in them is between client and template."""
    if values is None:
        return []
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ChatTemplateError(f"documents: expected an array, got {describe(values)}")
    return [_object(each, f"documents[{index}]") for index, each in enumerate(values)]


def has_images(messages: Sequence[Mapping[str, object]]) -> bool:
    """Whether any message shows an image."""
    return any(
        isinstance(part, Mapping) and part.get("type") in IMAGE_PARTS
        for message in messages
        if isinstance(content := message.get("content"), list | tuple)
        for part in content
    )


def text_of(content: object) -> str:
    """The texts of a content, whatever its form; parts are lines."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, Mapping))
    return "\n".join(text for text in texts if isinstance(text, str))


# ------------------------------------------------------------------------------------ one message


def _message(value: object, path: str) -> Message:
    message = {key: each for key, each in _object(value, path).items() if each is not None}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ChatTemplateError(f"{path}.role: expected a role's name, got {describe(role)}")
    if "content" in message:
        message["content"] = _content(message["content"], f"{path}.content")
    for field in _TEXT_FIELDS:
        if field in message and not isinstance(message[field], str):
            raise ChatTemplateError(
                f"{path}.{field}: expected a string, got {describe(message[field])}"
            )
    if "function_call" in message and "tool_calls" not in message:
        function = message.pop("function_call")
        message["tool_calls"] = [{"type": "function", "function": function}]
    if "tool_calls" in message:
        calls = message["tool_calls"]
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise ChatTemplateError(f"{path}.tool_calls: expected an array, got {describe(calls)}")
        message["tool_calls"] = [
            _tool_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(calls)
        ]
        if not calls:
            del message["tool_calls"]
    if role == "function":
        message["role"] = "tool"
    reasoning = next((message[name] for name in _REASONING_FIELDS if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def _content(value: object, path: str) -> object:
    if isinstance(value, str):
        return value
    if not isinstance(value, Sequence):
        raise ChatTemplateError(
            f"{path}: expected a string or an array of parts, got {describe(value)}"
        )
    return [_part(part, f"{path}[{index}]") for index, part in enumerate(value)]


def _part(value: object, path: str) -> Message:
    if isinstance(value, str):  # as some clients write a text part
        return {"type": "text", "text": value}
    part = _object(value, path)
    kind = part.get("type")
    if not isinstance(kind, str):
        raise ChatTemplateError(f"{path}.type: expected a string, got {describe(kind)}")
    if kind in _TEXT_PARTS:
        text = part.get(_TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise ChatTemplateError(
                f"{path}.{_TEXT_PARTS[kind]}: expected a string, got {describe(text)}"
            )
        return part if kind == "text" else {"type": "text", "text": text}
    return part


def _tool_call(value: object, path: str) -> Message:
    call = {key: each for key, each in _object(value, path).items() if each is not None}
    flat = "function" not in call and "name" in call
    place = path if flat else f"{path}.function"
    function = call if flat else _object(call.get("function"), place)
    if not isinstance(function.get("name"), str):
        raise ChatTemplateError(
            f"{place}.name: expected a string, got {describe(function.get('name'))}"
        )
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str | Mapping):
        raise ChatTemplateError(
            f"{place}.arguments: expected JSON text or an object, got {describe(arguments)}"
        )
    if "id" in call and not isinstance(call["id"], str):
        raise ChatTemplateError(f"{path}.id: expected a string, got {describe(call['id'])}")
    return call


def _tool(value: object, path: str) -> Message:
    tool = _object(value, path)
    if "function" not in tool and "name" in tool:
        tool = {"type": "function", "function": tool}
    function = _object(tool.get("function"), f"{path}.function")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ChatTemplateError(f"{path}.function.name: expected a name, got {describe(name)}")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ChatTemplateError(
            f"{path}.function.parameters: expected a JSON Schema, got {describe(parameters)}"
        )
    return tool


def _object(value: object, path: str) -> Message:
    if not isinstance(value, Mapping):
        raise ChatTemplateError(f"{path}: expected an object, got {describe(value)}")
    for key in value:
        if not isinstance(key, str):
            raise ChatTemplateError(f"{path}: expected names of fields, got {describe(key)}")
    return dict(value)
