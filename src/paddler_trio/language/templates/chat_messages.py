"""Messages and tools as people send them: OpenAI's shape, checked and in one spelling.

Templates are programs: a message of the wrong shape would make them fail somewhere inside, or print
Python to the model. So shapes are checked here, with the path of the field, and what OpenAI and
others spell in several ways leaves in the one spelling that templates read:

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
SOUND_PARTS = frozenset({"input_audio"})

Message = dict[str, object]


def read_messages(values: object) -> list[Message]:
    """The messages of a conversation, checked and in one spelling; of none the template decides.

    Raises:
      ChatTemplateError: ``messages[i].field`` is not what it has to be.
    """
    messages = _array(values, "messages")
    if len(messages) > MAX_MESSAGES:
        raise ChatTemplateError(f"messages: {len(messages)} messages, the limit is {MAX_MESSAGES}")
    return [_message(each, f"messages[{index}]") for index, each in enumerate(messages)]


def read_tools(values: object) -> list[Message]:
    """Function tools, checked; a bare function is wrapped as OpenAI does.

    Raises:
      ChatTemplateError: ``tools[i].field`` is not what it has to be.
    """
    tools = () if values is None else _array(values, "tools")
    return [_tool(each, f"tools[{index}]") for index, each in enumerate(tools)]


def read_documents(values: object) -> list[Message]:
    """Documents for retrieval: objects; what is in them is between client and template."""
    documents = () if values is None else _array(values, "documents")
    return [_object(each, f"documents[{index}]") for index, each in enumerate(documents)]


def has_media(messages: Sequence[Mapping[str, object]]) -> bool:
    """Return whether any message shows an image, or plays a sound."""
    return any(
        isinstance(part, Mapping) and part.get("type") in IMAGE_PARTS | SOUND_PARTS
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
        raise _wrong(f"{path}.role", "a role's name", role)
    if "content" in message:
        message["content"] = _content(message["content"], f"{path}.content")
    for field in _TEXT_FIELDS:
        if field in message and not isinstance(message[field], str):
            raise _wrong(f"{path}.{field}", "a string", message[field])
    if "function_call" in message and "tool_calls" not in message:
        function = message.pop("function_call")
        message["tool_calls"] = [{"type": "function", "function": function}]
    if "tool_calls" in message:
        calls = _array(message["tool_calls"], f"{path}.tool_calls")
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
        raise _wrong(path, "a string or an array of parts", value)
    return [_part(part, f"{path}[{index}]") for index, part in enumerate(value)]


def _part(value: object, path: str) -> Message:
    if isinstance(value, str):  # as some clients write a text part
        return {"type": "text", "text": value}
    part = _object(value, path)
    kind = part.get("type")
    if not isinstance(kind, str):
        raise _wrong(f"{path}.type", "a string", kind)
    if kind in _TEXT_PARTS:
        text = part.get(_TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise _wrong(f"{path}.{_TEXT_PARTS[kind]}", "a string", text)
        return part if kind == "text" else {"type": "text", "text": text}
    return part


def _tool_call(value: object, path: str) -> Message:
    call = {key: each for key, each in _object(value, path).items() if each is not None}
    flat = "function" not in call and "name" in call
    place = path if flat else f"{path}.function"
    function = call if flat else _object(call.get("function"), place)
    if not isinstance(function.get("name"), str):
        raise _wrong(f"{place}.name", "a string", function.get("name"))
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str | Mapping):
        raise _wrong(f"{place}.arguments", "JSON text or an object", arguments)
    if "id" in call and not isinstance(call["id"], str):
        raise _wrong(f"{path}.id", "a string", call["id"])
    return call


def _tool(value: object, path: str) -> Message:
    tool = _object(value, path)
    if "function" not in tool and "name" in tool:
        tool = {"type": "function", "function": tool}
    function = _object(tool.get("function"), f"{path}.function")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise _wrong(f"{path}.function.name", "a name", name)
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise _wrong(f"{path}.function.parameters", "a JSON Schema", parameters)
    return tool


def _object(value: object, path: str) -> Message:
    if not isinstance(value, Mapping):
        raise _wrong(path, "an object", value)
    for key in value:
        if not isinstance(key, str):
            raise _wrong(path, "names of fields", key)
    return dict(value)


def _array(value: object, path: str) -> Sequence[object]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _wrong(path, "an array", value)
    return value


def _wrong(path: str, expected: str, value: object) -> ChatTemplateError:
    return ChatTemplateError(f"{path}: expected {expected}, got {describe(value)}")
