"""Anthropic's messages as one native request: pure, every field honoured or refused by name.

One of their messages may become several of ours: the results of tools are messages of their own
in every chat template, and they come before the rest of the user's turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from paddler_trio.balancer.apis.anthropic.anthropic_fields import (
    HOSTED_RESULTS,
    HOSTED_USES,
    count_tokens_record,
    messages_record,
)
from paddler_trio.balancer.apis.api_errors import ApiError, invalid
from paddler_trio.balancer.apis.fields import list_in, object_in, text_in, unread
from paddler_trio.balancer.apis.generation_fields import generate_of, schema_constraint
from paddler_trio.balancer.apis.ignored_fields import STRICT, IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.openai.chat_conversation import must_be_there, plain_content
from paddler_trio.balancer.apis.openai.chat_fields import EFFORTS
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.balancer.apis.under_presets import CountedPrompt, Generating
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.trio.work import Constraint, ConversationPrompt


@attrs.frozen(kw_only=True)
class MessagesRequest(Generating):
    model: str | None
    is_stream: bool
    with_thinking: bool = True
    """false: the answer has a thinking block without its text."""


def read_messages(
    body: object, limits: ApiLimits, ignored: IgnoredFields = STRICT
) -> MessagesRequest:
    """Read the request; ApiError 400, with the path of the field in ``param``, for what cannot be
    honoured."""
    values = messages_record(limits).read(body, "", ignored)
    max_tokens = values["max_tokens"]
    assert isinstance(max_tokens, int)
    generate = generate_of(
        values,
        _conversation(values),
        max_tokens=max_tokens,
        constraint=_constraint(values),
        stop=list_in(values, "stop_sequences"),
    )
    return MessagesRequest(
        generate=generate,
        model=text_in(values, "model"),
        is_stream=values.get("stream") is True,
        with_thinking=object_in(values, "thinking").get("display") != "omitted",
    )


def read_count_tokens(
    body: object, limits: ApiLimits, ignored: IgnoredFields = STRICT
) -> CountedPrompt:
    """Return the prompt alone, and the model's name."""
    values = count_tokens_record(limits).read(body, "", ignored)
    return CountedPrompt(_conversation(values), text_in(values, "model"))


def _constraint(values: Mapping[str, object]) -> Constraint | None:
    formats = {
        "output_config.format": object_in(values, "output_config").get("format"),
        "output_format": values.get("output_format"),
    }
    asked = {name: wanted for name, wanted in formats.items() if wanted is not None}
    if len(asked) > 1:
        raise invalid(
            "output_config.format and output_format are the same; give one", "output_format"
        )
    for wanted in asked.values():
        assert isinstance(wanted, Mapping)
        return schema_constraint(wanted["schema"])
    return None


# ----------------------------------------------------------------------------- the conversation


def _conversation(values: Mapping[str, object]) -> ConversationPrompt:
    if "thread" in values:
        raise ApiError(
            400,
            "thread is not supported: conversations are not kept; send all messages",
            param="thread",
            code="unsupported_parameter",
            # what the official clients know as "then without": they go on unthreaded
            details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
        )
    turns = list_in(values, "messages")
    messages: list[Json] = []
    system = values.get("system")
    if system:
        messages.append({"role": "system", "content": _text_of(system)})
    for index, message in enumerate(turns):
        messages += _turn(message, index)
    continues = turns[-1]["role"] == messages[-1]["role"] == "assistant"
    if continues:
        _check_continuable(messages, len(turns) - 1)
    tools, choice, name = _tools(values)
    thinking, budget = _thinking(values)
    return ConversationPrompt(
        messages=tuple(messages),
        tools=tuple(tools),
        tool_choice=choice,
        tool_name=name,
        parallel_tool_calls=(
            object_in(values, "tool_choice").get("disable_parallel_tool_use") is not True
        ),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        thinking=thinking,
        max_reasoning_tokens=budget,
    )


def _check_continuable(messages: Sequence[Json], index: int) -> None:
    """An answer that is continued is text: calls and reasoning end by themselves."""
    last = messages[-1]
    if "tool_calls" in last or not last.get("content"):
        raise invalid(
            f"messages[{index}] is the assistant's and last: it must be text to go on with; a call "
            "wants its tool_result first",
            f"messages[{index}].content",
        )


def _turn(message: Mapping[str, object], index: int) -> list[Json]:
    content = message["content"]
    role = message["role"]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    assert isinstance(content, list)
    if role == "assistant":
        return _assistant(content)
    if role == "system":
        return [{"role": "system", "content": _text_of(content)}]
    results: list[Json] = []
    parts: list[Json] = []
    for block in content:
        if block["type"] == "tool_result" or block["type"] in HOSTED_RESULTS:
            results.append(_tool_result(block))
        elif block["type"] not in HOSTED_USES:
            parts.append(_part(block))
    said = {"role": "user", "content": plain_content(parts)}
    return results + ([said] if parts or not results else [])


def _assistant(blocks: Sequence[Mapping[str, object]]) -> list[Json]:
    """Several messages where results of a server's tools stand between what was said."""
    messages: list[Json] = []
    since: list[Mapping[str, object]] = []
    for block in blocks:
        if block["type"] not in HOSTED_RESULTS:
            since.append(block)
            continue
        if since:
            messages.append(_said(since))
            since = []
        messages.append(_tool_result(block))
    return [*messages, _said(since)] if since or not messages else messages


def _said(blocks: Sequence[Mapping[str, object]]) -> Json:
    spoken = (block for block in blocks if block["type"] not in _NOT_SPOKEN)
    text = "".join(str(part["text"]) for part in map(_part, spoken) if "text" in part)
    message: Json = {"role": "assistant", "content": text}
    thoughts = [str(block.get("thinking", "")) for block in blocks if block["type"] == "thinking"]
    calls: list[Json] = [
        {
            "id": block["id"],
            "type": "function",
            "function": {
                "name": block["name"],
                "arguments": dumps(block.get("input", {})).decode(),
            },
        }
        for block in blocks
        if block["type"] in _USES
    ]
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


_USES = ("tool_use", *HOSTED_USES)
_NOT_SPOKEN = (*_USES, "thinking", "redacted_thinking")


def _tool_result(block: Mapping[str, object]) -> Json:
    content = block.get("content", "")
    if block["type"] in HOSTED_RESULTS:
        content = "\n".join(_texts_in(content))
    parts: list[Json] = (
        [{"type": "text", "text": content}]
        if isinstance(content, str)
        else [_part(each) for each in _listed(content)]
    )
    if block.get("is_error") is True:
        parts.insert(0, {"type": "text", "text": "Error: "})
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": plain_content(parts)}


def _part(block: Mapping[str, object]) -> Json:
    """Return a block of a user or a tool, as a part of OpenAI's messages."""
    match block:
        case {"type": "text", "text": text}:
            return {"type": "text", "text": text}
        case {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}:
            return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
        case {"type": "image", "source": {"url": url}}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "document", "source": {"data": inside} | {"content": inside}}:
            return _headed(block, ("title", "context"), _text_of(inside))
        case {"type": "document", "source": source}:
            where = source.get("url") if isinstance(source, Mapping) else None
            name = {"type": "document", "filename": where or block.get("title")}
            return _headed(block, ("title", "context"), unread(name))
        case {"type": "search_result", "content": inside}:
            return _headed(block, ("title", "source"), _text_of(inside))
        case {"type": "tool_reference", "tool_name": name}:
            return {"type": "text", "text": f"Found: {name}"}
        case {"type": "compaction"}:
            return {"type": "text", "text": _text_of(block.get("content", ""))}
        case {"type": "container_upload"}:
            return {"type": "text", "text": unread(block)}
    raise AssertionError("the shape was read")


def _headed(block: Mapping[str, object], heads: Sequence[str], text: str) -> Json:
    told = [str(block[name]) for name in heads if block.get(name)]
    return {"type": "text", "text": "\n".join([*told, text])}


_TOLD = frozenset(
    {
        "text", "title", "url", "source", "data", "stdout", "stderr", "error_code", "tool_name",
        "return_code",
    }
)  # fmt: skip
"""Members of results that a server's tools gave in which a model can read something."""


def _texts_in(content: object) -> Iterator[str]:
    """Return the readable texts of a result, at any depth, in order."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for each in content:
            yield from _texts_in(each)
    elif isinstance(content, Mapping):
        for name, value in content.items():
            if isinstance(value, list | Mapping):
                yield from _texts_in(value)
            elif name in _TOLD and value not in (None, "", 0):
                yield str(value)


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) for block in _listed(content) if "text" in block)


def _listed(content: object) -> list[Mapping[str, object]]:
    assert isinstance(content, list)
    return content


# ------------------------------------------------------------------------- tools and thinking


def _tools(values: Mapping[str, object]) -> tuple[list[Json], str, str | None]:
    """Return the tools, the choice among them in OpenAI's words, and the one that is named."""
    # tools of the server were left out when they were read
    given = [tool for tool in list_in(values, "tools") if tool.get("type", "custom") == "custom"]
    tools: list[Json] = [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                **({"description": tool["description"]} if "description" in tool else {}),
                **({"strict": True} if tool.get("strict") is True else {}),
                "parameters": tool["input_schema"],
            },
        }
        for tool in given
    ]
    names = [str(tool["name"]) for tool in given]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise invalid(f"tools has {name!r} twice", f"tools[{index}].name")
    choice = object_in(values, "tool_choice")
    match choice.get("type", "auto"):
        case "any" if not tools:
            raise invalid('tool_choice is "any", but there are no tools', "tool_choice")
        case "any":
            return tools, "required", None
        case "tool":
            name = str(choice["name"])
            must_be_there(name, names, "tool_choice.name")
            return tools, "function", name
    return tools, str(choice.get("type", "auto")), None


def _thinking(values: Mapping[str, object]) -> tuple[bool, int | None]:
    """Return whether to think, and the bound on its tokens."""
    thinking = object_in(values, "thinking")
    if thinking.get("type", "disabled") == "disabled":
        return False, None
    effort = object_in(values, "output_config").get("effort")
    bounds = [
        bound
        for bound in (thinking.get("budget_tokens"), EFFORTS.get(str(effort)))
        if isinstance(bound, int)
    ]
    return True, min(bounds, default=None)
