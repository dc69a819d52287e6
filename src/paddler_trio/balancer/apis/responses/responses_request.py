"""A body of the Responses API as one native request: pure, every field honoured or refused.

A turn of the assistant is several items there (reasoning, message, calls) and one message of a
conversation here, because that is what chat templates take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from paddler_trio.balancer.apis.api_errors import ApiError, invalid
from paddler_trio.balancer.apis.fields import address_of_sound, list_in, object_in, text_in, unread
from paddler_trio.balancer.apis.generation_fields import generate_of, schema_constraint
from paddler_trio.balancer.apis.ignored_fields import STRICT, IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.openai.chat_conversation import must_be_there, plain_content
from paddler_trio.balancer.apis.openai.chat_fields import EFFORTS, template_effort
from paddler_trio.balancer.apis.openai.chat_request import Delivery, delivery_of, only_streams
from paddler_trio.balancer.apis.responses.client_tools import (
    KINDS,
    NAMESPACE,
    Item,
    Offered,
    call_id,
    call_of,
    found_in,
    in_namespace,
    offered,
    result_of,
)
from paddler_trio.balancer.apis.responses.responses_fields import (
    LOGPROBS,
    input_tokens_record,
    responses_record,
)
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.balancer.apis.under_presets import conversation_over, preset_over
from paddler_trio.wire.trio.presets import Preset
from paddler_trio.wire.trio.work import AnyJsonGrammar, Constraint, ConversationPrompt, Generate


def input_items(value: object) -> list[Item]:
    """Return the ``input`` as a list of items."""
    if value is None:
        return []
    if isinstance(value, str):
        part = {"type": "input_text", "text": value}
        return [{"type": "message", "role": "user", "content": [part]}]
    assert isinstance(value, list)
    return value


def messages_of(items: Iterable[Item]) -> list[Json]:
    """Return the conversation, in OpenAI's shape of chat messages."""
    messages: list[Json] = []
    for item in items:
        match item.get("type", "message"):
            case "reasoning":
                turn = _assistant_turn(messages, unless=("content", "tool_calls"))
                # joined at the end: there may be thousands of long ones in a row
                thoughts = turn.setdefault("reasoning_content", [])
                assert isinstance(thoughts, list)
                thoughts.append(_thought(item))
            case "message" if item["role"] == "assistant":
                turn = _assistant_turn(messages, unless=("content",))
                turn["content"] = _content(item["content"])
            case "message":
                role = "system" if item["role"] == "developer" else item["role"]
                messages.append({"role": role, "content": _content(item["content"])})
            case _:  # a call, a result, both, or of a kind that was left out
                if (call := call_of(item)) is not None:
                    calls = _assistant_turn(messages).setdefault("tool_calls", [])
                    assert isinstance(calls, list)
                    calls.append(call)
                if (result := result_of(item)) is not None:
                    content = _content(result)
                    messages.append(
                        {"role": "tool", "tool_call_id": call_id(item), "content": content}
                    )
    for message in messages:
        message.setdefault("content", "")
        thoughts = message.get("reasoning_content")
        if isinstance(thoughts, list):
            message["reasoning_content"] = "".join(thoughts)
    return messages


def _assistant_turn(messages: list[Json], *, unless: Sequence[str] = ()) -> Json:
    """Return the newest message if it is the assistant's and has none of ``unless``, else a new
    one."""
    if messages:
        last = messages[-1]
        if last["role"] == "assistant" and not any(name in last for name in unless):
            return last
    messages.append({"role": "assistant"})
    return messages[-1]


def _thought(item: Item) -> str:
    """Return its content, or where there is none its summary."""
    parts = item.get("content") or item.get("summary") or []
    assert isinstance(parts, list)
    return "".join(str(part["text"]) for part in parts)


def _content(value: object) -> object:
    if isinstance(value, str):
        return value
    assert isinstance(value, list)
    parts: list[Json] = []
    for part in value:
        if part["type"] == "input_image":
            parts.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
        elif part["type"] == "input_audio":
            address = address_of_sound(part)
            parts.append({"type": "input_audio", "input_audio": {"url": address}})
        elif part["type"] == "input_file":
            parts.append({"type": "text", "text": unread(part)})
        else:
            parts.append({"type": "text", "text": part.get("text", part.get("refusal", ""))})
    return plain_content(parts)


@attrs.frozen(kw_only=True)
class ResponsesRequest:
    """Hold what a response is made of, but for what a stored one adds.

    Attributes:
      values: the body as it was read; much of it is echoed.
      items: its input.
      logprobs: how many alternatives are reported with each token; None for no report at all.
    """

    values: Mapping[str, object]
    items: Sequence[Item]
    logprobs: int | None
    delivery: Delivery
    preset: Preset | None = None
    ignored: IgnoredFields = STRICT

    def under(self, preset: Preset, ignored: IgnoredFields) -> ResponsesRequest:
        """Return it for a preset, which it is set under when the items before it are there."""
        return attrs.evolve(self, preset=preset, ignored=ignored)

    @property
    def previous_response_id(self) -> str | None:
        return text_in(self.values, "previous_response_id")

    @property
    def is_stored(self) -> bool:
        return self.values.get("store") is not False

    @property
    def summary(self) -> object:
        """Return how the request wants its reasoning summarised, in one of two spellings; None if
        not."""
        reasoning = object_in(self.values, "reasoning")
        return reasoning.get("summary") or reasoning.get("generate_summary")

    def offered(self, before: Sequence[Item]) -> Mapping[str, Offered]:
        """Return the tools by the names that the model knows them by: those of the request, and
        those that were found in the conversation; ``before`` are the items of earlier responses.

        Errors:
          ApiError: 400 for two tools of the request of one name.
        """
        tools: dict[str, Offered] = {}
        for index, tool in enumerate(list_in(self.values, "tools")):
            for each in offered([tool]):
                if each.model_name in tools:
                    raise invalid(f"tools has {each.model_name!r} twice", f"tools[{index}].name")
                tools[each.model_name] = each
        for each in found_in([*before, *self.items]):
            tools.setdefault(each.model_name, each)
        return tools

    def conversation(self, before: Sequence[Item]) -> ConversationPrompt:
        """Return the prompt; ``before`` are the items of earlier responses.

        Errors:
          ApiError: 400 if there is neither an input nor a response before it.
        """
        values = self.values
        messages = messages_of([*before, *self.items])
        if not messages and "input" in values:
            messages.append({"role": "user", "content": ""})  # templates want somebody to answer
        if not messages:
            raise ApiError(
                400,
                "input is missing: give a text, items, or a previous_response_id",
                param="input",
                code="missing_required_parameter",
            )
        if values.get("instructions"):
            messages.insert(0, {"role": "system", "content": values["instructions"]})
        tools, choice, name = _tools(values, self.offered(before))
        thinking, bound, words = _thinking(values)
        prompt = ConversationPrompt(
            messages=tuple(messages),
            tools=tuple(tools),
            tool_choice=choice,
            tool_name=name,
            parallel_tool_calls=values.get("parallel_tool_calls") is not False,
            thinking=thinking,
            max_reasoning_tokens=bound,
            template_kwargs=words,
        )
        if self.preset is None:
            return prompt
        return conversation_over(self.preset, prompt, self.ignored)

    def generate(self, before: Sequence[Item]) -> Generate:
        """Return the native request."""
        most = self.values.get("max_output_tokens")
        unset = attrs.evolve(self, preset=None)
        generate = generate_of(
            self.values,
            unset.conversation(before),
            max_tokens=most if isinstance(most, int) else None,
            constraint=_constraint(self.values),
            logprobs=self.logprobs,
        )
        return generate if self.preset is None else preset_over(self.preset, generate, self.ignored)


def read_responses(
    body: object, limits: ApiLimits, ignored: IgnoredFields = STRICT
) -> ResponsesRequest:
    """Read the request; ApiError 400, with the path of the field in ``param``, for what cannot be
    honoured."""
    values = responses_record(limits).read(body, "", ignored)
    only_streams(values, ignored)
    return _request(values)


def read_input_tokens(
    body: object, limits: ApiLimits, ignored: IgnoredFields = STRICT
) -> ResponsesRequest:
    """Read a request whose input is only counted."""
    return _request(input_tokens_record(limits).read(body, "", ignored))


def _request(values: Mapping[str, object]) -> ResponsesRequest:
    known = ("function", NAMESPACE, *KINDS)
    tools = [tool for tool in list_in(values, "tools") if tool["type"] in known]
    values = {**values, "tools": tools}
    top = values.get("top_logprobs", 0 if LOGPROBS in list_in(values, "include") else None)
    logprobs = top if isinstance(top, int) else None
    return ResponsesRequest(
        values=values,
        items=input_items(values.get("input")),
        logprobs=logprobs,
        delivery=delivery_of(values, logprobs),
    )


def _constraint(values: Mapping[str, object]) -> Constraint | None:
    match object_in(values, "text").get("format"):
        case {"type": "json_schema", "schema": schema, **others}:
            return schema_constraint(schema, is_strict=others.get("strict") is True)
        case {"type": "json_object"}:
            return AnyJsonGrammar()
    return None


def _tools(
    values: Mapping[str, object], tools: Mapping[str, Offered]
) -> tuple[list[Json], str, str | None]:
    """Return the tools in the shape of chat completions, the choice, and the one that is named."""
    choice = values.get("tool_choice", "auto")
    if choice == "required" and not tools:
        raise invalid('tool_choice is "required", but there are no tools', "tool_choice")
    if isinstance(choice, str):
        return _functions(tools.values()), choice, None
    assert isinstance(choice, Mapping)
    if choice["type"] != "allowed_tools":
        name = _chosen(choice, tools, "tool_choice")
        return _functions(tools.values()), "function", name
    names = {
        _chosen(tool, tools, f"tool_choice.tools[{index}]")
        for index, tool in enumerate(list_in(choice, "tools"))
        if tool["type"] == "function" or tool["type"] in KINDS
    }
    mode = str(choice.get("mode", "auto"))
    if mode == "required" and not names:
        raise invalid(
            "tool_choice.mode is required, but none of its tools is a function", "tool_choice.tools"
        )
    return _functions(tool for name, tool in tools.items() if name in names), mode, None


def _functions(tools: Iterable[Offered]) -> list[Json]:
    return [{"type": "function", "function": tool.function} for tool in tools]


def _chosen(choice: Mapping[str, object], tools: Mapping[str, Offered], path: str) -> str:
    """Return the name by which the model knows the tool that is chosen; ApiError 400 if there is
    none."""
    kind = str(choice["type"])
    if kind != "function" and KINDS[kind].name:
        name = KINDS[kind].name
        where = f"{path}.type"
    else:
        name, where = in_namespace(str(choice["name"]), choice.get("namespace")), f"{path}.name"
    if name not in tools:  # a tool of a namespace may be named without it
        name = next((each for each, tool in tools.items() if tool.name == name), name)
    must_be_there(name, tools, where)
    return name


def _thinking(values: Mapping[str, object]) -> tuple[bool | None, int | None, Json]:
    """Return whether to reason (None: as the template has it), the bound, and the template's
    words."""
    effort = object_in(values, "reasoning").get("effort")
    if not isinstance(effort, str):
        return None, None, {}
    bound = EFFORTS[effort]
    if bound == 0:
        return False, None, {}
    return True, bound, {"reasoning_effort": template_effort(effort)}
