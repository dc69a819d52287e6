"""Items of the Responses API as messages of a conversation: pure.

A turn of the assistant is several items there (reasoning, message, calls) and one message
here, because that is what chat templates know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Json = dict[str, object]
Item = Mapping[str, object]


def input_items(value: object) -> list[Item]:
    """What was given as ``input``, as a list of items."""
    if value is None:
        return []
    if isinstance(value, str):
        part = {"type": "input_text", "text": value}
        return [{"type": "message", "role": "user", "content": [part]}]
    assert isinstance(value, list)
    return value


def messages_of(items: Iterable[Item]) -> list[Json]:
    """The conversation, in OpenAI's shape of chat messages."""
    messages: list[Json] = []
    for item in items:
        match item.get("type", "message"):
            case "reasoning":
                turn = _assistant_turn(messages, unless=("content", "tool_calls"))
                turn["reasoning_content"] = str(turn.get("reasoning_content", "")) + _thought(item)
            case "function_call":
                calls = _assistant_turn(messages).setdefault("tool_calls", [])
                assert isinstance(calls, list)
                called = {"name": item["name"], "arguments": item["arguments"]}
                calls.append({"id": item["call_id"], "type": "function", "function": called})
            case "function_call_output":
                answered = item["call_id"]
                content = _content(item["output"])
                messages.append({"role": "tool", "tool_call_id": answered, "content": content})
            case _ if item["role"] == "assistant":
                turn = _assistant_turn(messages, unless=("content",))
                turn["content"] = _content(item["content"])
            case _:
                role = "system" if item["role"] == "developer" else item["role"]
                messages.append({"role": role, "content": _content(item["content"])})
    for message in messages:
        message.setdefault("content", "")
    return messages


def _assistant_turn(messages: list[Json], *, unless: Sequence[str] = ()) -> Json:
    """The newest message if it is the assistant's and has none of ``unless``, else a new one."""
    if messages:
        last = messages[-1]
        if last["role"] == "assistant" and not any(name in last for name in unless):
            return last
    messages.append({"role": "assistant"})
    return messages[-1]


def _thought(item: Item) -> str:
    """Its content, or where there is none its summary."""
    parts = item.get("content") or item.get("summary") or []
    assert isinstance(parts, list)
    return "".join(str(part["text"]) for part in parts)


def _content(value: object) -> object:
    """Text alone as one text, which every template can read; with an image, the parts."""
    if isinstance(value, str):
        return value
    assert isinstance(value, list)
    parts: list[Json] = []
    for part in value:
        if part["type"] == "input_image":
            parts.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
        else:
            parts.append({"type": "text", "text": part.get("text", part.get("refusal", ""))})
    if all(part["type"] == "text" for part in parts):
        return "".join(str(part["text"]) for part in parts)
    return parts
