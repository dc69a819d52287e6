"""The output of a response, item by item: results in, items and events out. Pure.

One object makes both the whole answer and the stream, so they cannot differ: a whole answer is the
items of a stream whose events are dropped. Events have no sequence numbers here.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from paddler_trio.apis.answer import (
    AnswerReader,
    ArgumentsDelta,
    ContentDelta,
    Ended,
    Prefilled,
    ReasoningDelta,
    ToolCallStart,
)
from paddler_trio.apis.prompt_progress import Reports
from paddler_trio.nursery_tree.request import RawResult

Json = dict[str, object]

_PREFIXES = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_"}
_PARTS = {"reasoning": "reasoning_text", "message": "output_text"}


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(24)


@attrs.define
class Output:
    """See the module docstring.

    Args:
      with_logprobs: texts carry those of their tokens.
      reports: the progress of the prompt, as events of type ``response.in_progress``; None for
        none.
    """

    with_logprobs: bool = False
    reports: Reports | None = None
    items: list[Json] = attrs.field(factory=list, init=False)
    ended: Ended | None = attrs.field(default=None, init=False)
    _reader: AnswerReader = attrs.field(factory=AnswerReader, init=False)
    _open: str | None = attrs.field(default=None, init=False)
    """The type of the newest item, while it grows."""
    _text: list[str] = attrs.field(factory=list, init=False)
    """Of the newest item."""
    _logprobs: list[Json] = attrs.field(factory=list, init=False)

    def take(self, results: Iterable[RawResult]) -> Iterator[Json]:
        """The events of these results."""
        for piece in self._reader.take(results):
            for members in () if self.reports is None else self.reports.before(0, piece):
                yield {"type": "response.in_progress", **members}
            match piece:
                case ReasoningDelta(text):
                    yield from self._part("reasoning")
                    yield self._grow("response.reasoning_text.delta", text)
                case ContentDelta(text, logprobs):
                    yield from self._part("message")
                    entries = [_logprob(entry) for entry in logprobs] if self.with_logprobs else []
                    self._logprobs += entries
                    bare = _without_bytes(entries)
                    yield self._grow("response.output_text.delta", text, logprobs=bare)
                case ToolCallStart(_, call_id, name):
                    yield from self._close("completed")
                    yield self._begin("function_call", call_id=call_id, name=name, arguments="")
                case ArgumentsDelta(_, arguments):
                    yield self._grow("response.function_call_arguments.delta", arguments)
                case Ended():
                    self.ended = piece
                    cut = piece.finish_reason == "length"
                    yield from self._close("incomplete" if cut else "completed")
                case Prefilled():
                    pass

    @property
    def _index(self) -> int:
        return len(self.items) - 1

    @property
    def _where(self) -> Json:
        """The members with which events name the newest item."""
        where: Json = {"item_id": self.items[-1]["id"], "output_index": self._index}
        return where if self._open == "function_call" else {**where, "content_index": 0}

    def _begin(self, kind: str, **members: object) -> Json:
        self._open = kind
        self._text, self._logprobs = [], []
        item: Json = {"id": new_id(_PREFIXES[kind]), "type": kind, "status": "in_progress"}
        self.items.append(item | members)
        added = dict(self.items[-1])
        return {
            "type": "response.output_item.added",
            "output_index": self._index,
            "item": added,
        }

    def _part(self, kind: str) -> Iterator[Json]:
        """Make an item of text the open one."""
        if self._open == kind:
            return
        yield from self._close("completed")
        if kind == "message":
            yield self._begin(kind, role="assistant", content=[])
        else:
            yield self._begin(kind, summary=[], content=[], encrypted_content=None)
        part = self._content_part("")
        yield {"type": "response.content_part.added", **self._where, "part": part}

    def _content_part(self, text: str) -> Json:
        assert self._open is not None
        part: Json = {"type": _PARTS[self._open], "text": text}
        if self._open == "message":
            part |= {"annotations": [], "logprobs": list(self._logprobs)}
        return part

    def _grow(self, event: str, text: str, **more: object) -> Json:
        self._text.append(text)
        return {"type": event, **self._where, "delta": text, **more}

    def _close(self, status: str) -> Iterator[Json]:
        """End the open item, if there is one."""
        if self._open is None:
            return
        item, text, where = self.items[-1], "".join(self._text), self._where
        item["status"] = status
        if self._open == "function_call":
            item["arguments"] = text
            name = "response.function_call_arguments.done"
            yield {"type": name, **where, "arguments": text, "name": item["name"]}
        else:
            part = self._content_part(text)
            item["content"] = [part]
            members: Json = {"text": text}
            if self._open == "message":
                members["logprobs"] = _without_bytes(self._logprobs)
            yield {"type": f"response.{_PARTS[self._open]}.done", **where, **members}
            yield {"type": "response.content_part.done", **where, "part": part}
        self._open = None
        yield {"type": "response.output_item.done", "output_index": self._index, "item": item}


def _without_bytes(logprobs: Sequence[Json]) -> list[Json]:
    """As events have them; content has their bytes."""
    bare = []
    for entry in logprobs:
        top = entry["top_logprobs"]
        assert isinstance(top, list)
        others = [{"token": other["token"], "logprob": other["logprob"]} for other in top]
        bare.append({"token": entry["token"], "logprob": entry["logprob"], "top_logprobs": others})
    return bare


def _logprob(entry: Mapping[str, object]) -> Json:
    top = entry.get("top", [])
    assert isinstance(top, Sequence)
    names = ("token", "logprob", "bytes")
    return {
        **{name: entry[name] for name in names},
        "top_logprobs": [{name: other[name] for name in names} for other in top],
    }
