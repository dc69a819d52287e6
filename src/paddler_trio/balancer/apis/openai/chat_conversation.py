"""The prompt of a chat completion: messages, tools and thinking as agents take them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from paddler_trio.balancer.apis import free_form
from paddler_trio.balancer.apis.api_errors import invalid
from paddler_trio.balancer.apis.fields import address_of_sound, list_in, object_in, unread
from paddler_trio.balancer.apis.ignored_fields import STRICT, IgnoredFields
from paddler_trio.balancer.apis.message_fields import RESPONSES_TEXTS
from paddler_trio.balancer.apis.openai.chat_fields import EFFORTS, template_effort
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.errors import shortened
from paddler_trio.wire.trio.work import ConversationPrompt


def conversation_prompt(
    values: Mapping[str, object], ignored: IgnoredFields = STRICT
) -> ConversationPrompt:
    """Return the prompt, from what the table of chat completions has read."""
    adapted = [_message(message) for message in list_in(values, "messages")]
    tools, choice, name = _tools(values, ignored)
    continues, opens = _turn(values, adapted)
    thinking, budget = _thinking(values)
    return ConversationPrompt(
        messages=tuple(adapted),
        tools=tuple(tools),
        tool_choice=choice,
        tool_name=name,
        parallel_tool_calls=values.get("parallel_tool_calls") is not False,
        raw_tool_calls=values.get("parse_tool_calls") is False,
        continue_final_message=continues,
        add_generation_prompt=opens,
        thinking=thinking,
        max_reasoning_tokens=budget,
        template_kwargs=_template_kwargs(values),
        raw_reasoning=values.get("reasoning_format") == "none",
    )


def _message(message: object) -> Json:
    """Return a message as templates read it: a developer is the system, a refusal is content, and a
    call is one of ``tool_calls``."""
    assert isinstance(message, dict)
    adapted: Json = {
        key: each
        for key, each in message.items()
        if key not in {"annotations", "reasoning_details", "refusal"}
    }
    if adapted["role"] == "developer":
        adapted["role"] = "system"
    if "refusal" in message and "content" not in adapted:
        adapted["content"] = message["refusal"]
    if (called := adapted.pop("function_call", None)) is not None:
        calls = [*list_in(adapted, "tool_calls"), {"type": "function", "function": called}]
        adapted["tool_calls"] = calls
    if adapted["role"] != "assistant":
        adapted.setdefault("content", "")
    if "tool_calls" in adapted:
        adapted["tool_calls"] = [_call(call) for call in list_in(adapted, "tool_calls")]
    content = adapted.get("content")
    if isinstance(content, list):
        adapted["content"] = [_part(part) for part in content] or ""
    return adapted


def _call(call: Json) -> Json:
    """Return a call of free text as one of the function that stands for its tool."""
    match call:
        case {"type": "custom", "custom": {"name": name, "input": text}}:
            function = {"name": name, "arguments": free_form.arguments_of(text)}
            return {"id": call.get("id"), "type": "function", "function": function}
    return {**call, "function": {"arguments": "{}", **object_in(call, "function")}}


def _part(part: object) -> Json:
    adapted = _without(part, "cache_control")
    if adapted["type"] in RESPONSES_TEXTS:
        adapted["type"] = "text"
    if adapted["type"] in ("file", "video_url"):
        return {"type": "text", "text": unread(adapted)}
    if adapted["type"] == "input_audio":
        return {"type": "input_audio", "input_audio": {"url": address_of_sound(adapted)}}
    image = adapted.get("image_url")
    if isinstance(image, str):
        adapted["image_url"] = {"url": image}
    elif isinstance(image, Mapping):
        adapted["image_url"] = {"url": image["url"]}
    return adapted


def plain_content(parts: list[Json]) -> object:
    """Return text alone as one text, which every template can read; with an image, the parts."""
    if all(part["type"] == "text" for part in parts):
        return "".join(str(part["text"]) for part in parts)
    return parts


def _turn(values: Mapping[str, object], messages: Sequence[Json]) -> tuple[bool, bool]:
    """Return whether the last message is continued, and whether an answer is opened."""
    last: Json = messages[-1] if messages else {"role": "nobody"}
    continues = values.get("continue_final_message", _is_continued(values, last)) is True
    opens = values.get("add_generation_prompt", not continues) is True
    if continues and opens:
        raise invalid(
            "continue_final_message and add_generation_prompt are both true; one of them can be",
            "continue_final_message",
        )
    if continues and last["role"] != "assistant":
        raise invalid(
            f"continue_final_message: the last message is the {last['role']}'s, must be the "
            "assistant's",
            "continue_final_message",
        )
    if len(messages) > 1 and all(each["role"] == "assistant" for each in messages[-2:]):
        raise invalid(
            "messages ends with two messages of the assistant; at most one may stand there",
            f"messages[{len(messages) - 1}].role",
        )
    return continues, opens


def _is_continued(values: Mapping[str, object], last: Json) -> bool:
    """llama-server's rule where the request leaves it open: text of the assistant that stands last
    is the beginning of the answer. A call is no text, and its result comes first."""
    is_given = "add_generation_prompt" in values
    is_begun = last["role"] == "assistant" and not last.get("tool_calls")
    return is_begun and not is_given and bool(_text_in(last.get("content")))


def _text_in(content: object) -> str:
    if not isinstance(content, list):
        return str(content or "")
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def _tools(
    values: Mapping[str, object], ignored: IgnoredFields
) -> tuple[list[Json], str, str | None]:
    """Return the tools, the choice among them, and the one that is named. Of several tools of one
    name the first counts: clients join the lists of servers that do not know of each other."""
    by_name: dict[str, Json] = {}
    tools = functions_in(values.get("tools", []))
    for tool in tools:
        name = _name(tool)
        if name not in by_name:
            by_name[name] = {"type": "function", **_without(tool, "cache_control")}
        elif ignored.is_strict:
            raise invalid(f"tools has {name!r} twice", "tools")
        else:
            ignored.add("tools[]", name)
    functions, names = list(by_name.values()), list(by_name)
    choice = values.get("tool_choice", "auto")
    choice = "required" if choice == "any" else choice
    if choice == "none":
        return functions, "none", None
    if choice == "required" and not tools:
        raise invalid('tool_choice is "required", but there are no tools', "tool_choice")
    if isinstance(choice, str):
        return functions, choice, None
    assert isinstance(choice, Mapping)
    if choice["type"] in ("function", "custom"):
        (name,) = map(_name, functions_in([choice]))
        must_be_there(name, names, "tool_choice")
        return functions, "function", name
    allowed = choice["allowed_tools"]
    assert isinstance(allowed, Mapping)
    wanted = [_name(tool) for tool in functions_in(allowed["tools"])]
    for name in wanted:
        must_be_there(name, names, "tool_choice")
    chosen = [tool for tool in functions if _name(tool) in wanted]
    mode = str(allowed.get("mode", "auto"))
    if mode == "required" and not chosen:
        raise invalid(
            "tool_choice.allowed_tools.mode is required, but none of its tools is a function",
            "tool_choice",
        )
    return chosen, mode, None


def functions_in(tools: object) -> list[Json]:
    """Return the tools that are functions, and those of free text as functions; those of other
    kinds, which a server would run itself, are ignored."""
    assert isinstance(tools, list)
    kinds = ("function", "custom")
    return [_as_function(tool) for tool in tools if tool.get("type", "function") in kinds]


def _as_function(tool: Json) -> Json:
    if tool.get("type", "function") == "function":
        return tool
    custom = object_in(tool, "custom")
    form = object_in(custom, "format")
    told = {**form, **object_in(form, "grammar")}  # it is one object deeper than in responses
    function = free_form.function_of(custom["name"], custom.get("description"), told)
    return {"type": "function", "function": function}


def custom_tools_in(values: Mapping[str, object]) -> frozenset[str]:
    """Return the names of the tools of free text."""
    tools = [tool for tool in list_in(values, "tools") if tool.get("type") == "custom"]
    return frozenset(str(tool["custom"]["name"]) for tool in tools if "custom" in tool)


def must_be_there(name: str, names: Collection[str], path: str) -> None:
    """Raise ApiError 400 unless the tool that the choice at ``path`` names is one of ``names``."""
    if name not in names:
        known = shortened(", ".join(names)) or "none"
        raise invalid(f"tool_choice names {name!r}; the tools are: {known}", path)


def _name(tool: object) -> str:
    match tool:
        case {"function": {"name": str(name)}}:
            return name
    raise AssertionError("the shape was read")


def _without(value: object, key: str) -> Json:
    assert isinstance(value, dict)
    return {name: each for name, each in value.items() if name != key}


def _thinking(values: Mapping[str, object]) -> tuple[bool | None, int | None]:
    """Return whether to reason (None: as the template has it) and the bound on its tokens."""
    requested: dict[str, bool] = {}
    bounds: dict[str, int] = {}

    def effort(value: object, name: str) -> None:
        if isinstance(value, str):
            bound = EFFORTS[value]
            requested[name] = bound != 0
            if bound:
                bounds[name] = bound

    def budget(tokens: object, name: str) -> None:
        if isinstance(tokens, int):
            requested[name] = tokens != 0
            if tokens > 0:
                bounds[name] = tokens

    def flag(value: object, name: str) -> None:
        if isinstance(value, bool):
            requested[name] = value

    thinking, reasoning = object_in(values, "thinking"), object_in(values, "reasoning")
    kwargs = object_in(values, "chat_template_kwargs")
    effort(values.get("reasoning_effort"), "reasoning_effort")
    effort(reasoning.get("effort"), "reasoning.effort")
    effort(values.get("think"), "think")
    flag(values.get("enable_thinking"), "enable_thinking")
    flag(values.get("think"), "think")
    flag(reasoning.get("enabled"), "reasoning.enabled")
    flag(kwargs.get("enable_thinking"), "chat_template_kwargs.enable_thinking")
    flag(kwargs.get("thinking"), "chat_template_kwargs.thinking")
    if "type" in thinking:
        requested["thinking.type"] = thinking["type"] != "disabled"
    budget(values.get("reasoning_budget_tokens"), "reasoning_budget_tokens")
    budget(reasoning.get("max_tokens"), "reasoning.max_tokens")
    budget(thinking.get("budget_tokens"), "thinking.budget_tokens")
    if len(set(requested.values())) > 1:
        on = next(name for name, thinks in requested.items() if thinks)
        off = next(name for name, thinks in requested.items() if not thinks)
        raise invalid(f"{on} asks for reasoning and {off} for none", off)
    thinks = next(iter(requested.values()), None)
    return thinks, min(bounds.values(), default=None) if thinks else None


def _template_kwargs(values: Mapping[str, object]) -> Json:
    reasoning = object_in(values, "reasoning")
    variables: Json = {
        name: each
        for name, each in object_in(values, "chat_template_kwargs").items()
        if not (name == "enable_thinking" and isinstance(each, bool))
    }
    word = values.get("reasoning_effort", reasoning.get("effort", values.get("think")))
    if isinstance(word, str) and EFFORTS[word] != 0:
        variables.setdefault("reasoning_effort", template_effort(word))
    if "documents" in values:
        variables["documents"] = values["documents"]
    return variables
