"""Tools that the client of a response runs, as functions for the model, and their calls back.

The Responses API has kinds of tools and of items that its own models were trained on: free text,
a shell, patches, a search for further tools, and namespaces. Models here call functions. So each
kind is offered as a function, its items in a conversation are calls of that function, and a call
that the model writes is told as an item of the kind. One table has what differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs

from paddler_trio.balancer.apis import free_form
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.wire.codec import dumps

Item = Mapping[str, object]

_TEXT: Json = {"type": "string"}
_TEXTS: Json = {"type": "array", "items": _TEXT}
_TIME: Json = {"type": "integer", "description": "Milliseconds it may take."}


def _object(required: Sequence[str], **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


def _action(item: Item) -> object:
    action = item.get("action")
    assert isinstance(action, Mapping), "the shape was read"
    return {name: value for name, value in action.items() if name != "type"}


@attrs.frozen(kw_only=True)
class ClientTool:
    """One kind of tool.

    Args:
      name, description, parameters: the function that stands for it; empty where each tool of the
        kind has its own.
      item: the type of its calls; that of their results ends with ``_output``.
      arguments: those of a call in a conversation.
      members: of an item, after the model's arguments, which are empty at first.
    """

    name: str = ""
    description: str = ""
    parameters: Mapping[str, object] = attrs.field(factory=dict)
    item: str
    prefix: str
    arguments: Callable[[Item], object]
    members: Callable[[Mapping[str, object]], Json]


KINDS: Mapping[str, ClientTool] = {
    "custom": ClientTool(
        item="custom_tool_call",
        prefix="ctc_",
        arguments=lambda item: {free_form.INPUT: item["input"]},
        members=lambda arguments: {},
    ),
    "local_shell": ClientTool(
        name="local_shell",
        description="Run a command on the user's machine.",
        parameters=_object(["command"], command=_TEXTS, working_directory=_TEXT, timeout_ms=_TIME),
        item="local_shell_call",
        prefix="lsh_",
        arguments=_action,
        members=lambda arguments: {
            "action": {"type": "exec", "command": [], "env": {}, **arguments}
        },
    ),
    "shell": ClientTool(
        name="shell",
        description="Run commands in a shell on the user's machine.",
        parameters=_object(["commands"], commands=_TEXTS, timeout_ms=_TIME),
        item="shell_call",
        prefix="sh_",
        arguments=_action,
        members=lambda arguments: {
            "action": {
                "commands": [],
                "timeout_ms": None,
                "max_output_length": None,
                **arguments,
            }
        },
    ),
    "apply_patch": ClientTool(
        name="apply_patch",
        description="Create, update or delete a file; diff is in the V4A format.",
        parameters=_object(
            ["type", "path"],
            type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            path=_TEXT,
            diff=_TEXT,
        ),
        item="apply_patch_call",
        prefix="apc_",
        arguments=lambda item: item["operation"],
        members=lambda arguments: {
            "operation": {"type": "update_file", "path": "", "diff": "", **arguments}
        },
    ),
    "tool_search": ClientTool(
        name="tool_search",
        description="Search for further tools.",
        parameters=_object(["query"], query=_TEXT),
        item="tool_search_call",
        prefix="tsc_",
        arguments=lambda item: item.get("arguments"),
        members=lambda arguments: {"execution": "client", "arguments": dict(arguments)},
    ),
}
_BY_ITEM = {kind.item: kind for kind in KINDS.values()}
NAMESPACE = "namespace"


@attrs.frozen
class Offered:
    """One tool that is offered: ``function`` for the model, whose kind and own name are these."""

    kind: str
    name: str
    namespace: str | None
    function: Json

    @property
    def model_name(self) -> str:
        return str(self.function["name"])


def offered(tools: Iterable[Mapping[str, object]]) -> Iterator[Offered]:
    """These tools of a request, those inside namespaces one by one, as functions."""
    for tool in tools:
        if tool["type"] == NAMESPACE:
            inside = tool["tools"]
            assert isinstance(inside, list), "the shape was read"
            for each in inside:
                if each["type"] == "function" or each["type"] in KINDS:
                    yield _offer(each, str(tool["name"]))
        elif tool["type"] == "function" or (tool["type"] in KINDS and _is_the_clients(tool)):
            yield _offer(tool, None)


def _is_the_clients(tool: Mapping[str, object]) -> bool:
    match tool:
        case {"type": "tool_search"}:
            return tool.get("execution") == "client"
        case {"type": "shell", "environment": {"type": str(where)}}:
            return where == "local"
    return True


def _offer(tool: Mapping[str, object], namespace: str | None) -> Offered:
    kind = str(tool["type"])
    if kind == "function":
        known = ("name", "description", "parameters", "strict")
        function = {key: tool[key] for key in known if key in tool and tool[key] is not False}
    elif kind == "custom":
        function = free_form.function_of(tool["name"], tool.get("description"), tool.get("format"))
    else:
        usual = KINDS[kind]
        own = {key: tool[key] for key in ("description", "parameters") if tool.get(key)}
        function = {
            "name": usual.name,
            "description": usual.description,
            "parameters": usual.parameters,
            **own,
        }
    name = str(function["name"])
    return Offered(kind, name, namespace, {**function, "name": in_namespace(name, namespace)})


def in_namespace(name: str, namespace: object) -> str:
    """Return the name by which the model knows a tool of a namespace."""
    if not namespace:
        return name
    joint = "" if str(namespace).endswith("__") else "__"
    return f"{namespace}{joint}{name}"


def call_of(item: Item) -> Json | None:
    """Return a call in a conversation, as a call of chat completions; None for what is no call."""
    kind = str(item.get("type"))
    if kind in ("function_call", "mcp_call"):
        arguments = item.get("arguments") or "{}"
        name = str(item["name"])
    elif kind in _BY_ITEM:
        tool = _BY_ITEM[kind]
        arguments = dumps(tool.arguments(item) or {}).decode()
        name = tool.name or str(item["name"])
    else:
        return None
    called = {"name": in_namespace(name, item.get("namespace")), "arguments": arguments}
    return {"id": call_id(item), "type": "function", "function": called}


def call_id(item: Item) -> str:
    """Return what a call and its result have in common; ``call`` where neither has a name."""
    return str(item.get("call_id") or item.get("id") or "call")


def result_of(item: Item) -> object:
    """Return the result that an item has for a call: a text, or parts; None for none."""
    match item:
        case {"type": "mcp_call"}:
            result = item.get("output") or item.get("error")
            return None if result is None else _as_text(result)
        case {"type": "tool_search_output"}:
            names = [tool.model_name for tool in found_in([item])]
            return f"Found: {', '.join(names)}" if names else "Nothing was found."
        case {"type": "shell_call_output", "output": list(outputs)}:
            return "\n".join(map(_shell_text, outputs))
        case {"type": str(kind)} if kind.endswith("_output"):
            result = item.get("output")
            return item.get("status", "") if result is None else result
    return None


def _shell_text(output: object) -> str:
    if not isinstance(output, Mapping):
        return _as_text(output)
    text = f"{output.get('stdout') or ''}{output.get('stderr') or ''}"
    match output.get("outcome"):
        case {"type": "timeout"}:
            return f"{text}\n[timeout]"
        case {"exit_code": code} if code:
            return f"{text}\n[exit code {code}]"
    return text


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def found_in(items: Iterable[Item]) -> Iterator[Offered]:
    """Return the tools that searches in a conversation have found."""
    for item in items:
        if item.get("type") == "tool_search_output":
            tools = item.get("tools") or []
            assert isinstance(tools, list), "the shape was read"
            yield from offered(tools)


@attrs.define
class WrittenCall:
    """One call while the model writes it, as the item of the tool's kind and its events.

    ``tool`` is None for a function that was not offered.
    """

    _name: str
    _tool: Offered | None = None
    _arguments: list[str] = attrs.field(factory=list, init=False)
    _free: free_form.FreeText = attrs.field(factory=free_form.FreeText, init=False)

    @property
    def _kind(self) -> str:
        return "function" if self._tool is None else self._tool.kind

    @property
    def begun(self) -> tuple[str, Json]:
        """Return the type of the item, and its members before there are arguments."""
        tool = self._tool
        name = {"name": self._name if tool is None else tool.name}
        space = {} if tool is None or tool.namespace is None else {"namespace": tool.namespace}
        match self._kind:
            case "function":
                return "function_call", {**name, "arguments": "", **space}
            case "custom":
                return KINDS["custom"].item, {**name, free_form.INPUT: "", **space}
            case kind:
                return KINDS[kind].item, KINDS[kind].members({})

    def feed(self, arguments: str) -> Iterator[tuple[str, str]]:
        """Return the events of this piece of the arguments, each with what it adds."""
        self._arguments.append(arguments)
        if self._kind == "function":
            yield "response.function_call_arguments.delta", arguments
        elif self._kind == "custom" and (text := self._free.feed(arguments)):
            yield f"{_INPUT_EVENTS}.delta", text

    def end(self) -> tuple[list[Json], Json]:
        """Return the last events, and the members of the whole item that were not known before."""
        arguments = "".join(self._arguments)
        if self._kind == "function":
            name = self._name if self._tool is None else self._tool.name
            told: Json = {"arguments": arguments}
            done = {"type": "response.function_call_arguments.done", **told, "name": name}
            return [done], told
        if self._kind == "custom":
            rest = self._free.end()
            told = {free_form.INPUT: self._free.text}
            events: list[Json] = [{"type": f"{_INPUT_EVENTS}.done", **told}]
            if rest:
                events.insert(0, {"type": f"{_INPUT_EVENTS}.delta", "delta": rest})
            return events, told
        return [], KINDS[self._kind].members(_object_in(arguments))


_INPUT_EVENTS = "response.custom_tool_call_input"


def _object_in(arguments: str) -> Mapping[str, object]:
    """Return the arguments of a call as the model wrote them; empty where they are no object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
