"""Tool calls as members of chat messages: of functions, and of tools that take free text."""

from __future__ import annotations

from collections.abc import Container, Iterator

import attrs

from paddler_trio.balancer.apis import free_form
from paddler_trio.balancer.apis.answers.answer import ArgumentsDelta, Call, ToolCallStart
from paddler_trio.balancer.apis.shapes import Json


def whole_call(call: Call, custom_tools: Container[str]) -> Json:
    """Return one call of a whole message."""
    if call.name not in custom_tools:
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": call.id, "type": "function", "function": function}
    free = free_form.FreeText()
    text = free.feed(call.arguments) + free.end()
    return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": text}}


@attrs.define
class CallDeltas:
    """The calls of one choice as the deltas of its chunks.

    ``custom_tools`` are the names of the tools that take free text.
    """

    _custom_tools: Container[str]
    _free: free_form.FreeText | None = attrs.field(default=None, init=False)
    """The input of the newest call, if it is one of free text."""
    _index: int = attrs.field(default=0, init=False)

    def of(self, piece: ToolCallStart | ArgumentsDelta) -> Iterator[Json]:
        """Each is an entry of ``tool_calls``."""
        match piece:
            case ToolCallStart(index, call_id, name):
                yield from self.ended()
                self._index = index
                is_custom = name in self._custom_tools
                self._free = free_form.FreeText() if is_custom else None
                kind, member = ("custom", "input") if is_custom else ("function", "arguments")
                yield {
                    "index": index,
                    "id": call_id,
                    "type": kind,
                    kind: {"name": name, member: ""},
                }
            case ArgumentsDelta(index, arguments):
                if self._free is None:
                    yield {"index": index, "function": {"arguments": arguments}}
                elif text := self._free.feed(arguments):
                    yield {"index": index, "custom": {"input": text}}

    def ended(self) -> Iterator[Json]:
        """Return the rest of the newest call, once nothing follows."""
        if self._free is not None and (rest := self._free.end()):
            yield {"index": self._index, "custom": {"input": rest}}
        self._free = None
