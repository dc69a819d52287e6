"""Build the output of a response item by item, and the events of that. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from paddler_trio.balancer.apis.answers.answer import (
    AnswerReader,
    ArgumentsDelta,
    ContentDelta,
    Ended,
    Prefilled,
    ReasoningDelta,
    ToolCallStart,
    logprob_with_top,
    text_bytes,
    top_of,
)
from paddler_trio.balancer.apis.answers.kept_logprobs import KeptLogprobs
from paddler_trio.balancer.apis.answers.timings import Reports
from paddler_trio.balancer.apis.responses.client_tools import KINDS, Offered, WrittenCall
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.nursery_tree.step_results import RawResult

GROWING = frozenset(
    {"ContentToken", "Logprobs", "Progress", "ToolCallToken", "UndeterminableToken"}
)
"""Results that end no text."""
ITEM_BYTES: Final = 2048
"""The bytes of an item beside its texts."""
REPEATED_BYTES: Final = 160
"""The bytes of a log probability in the three events with which its item ends."""
PIECE_BYTES: Final = 64
"""The bytes of a piece of a text beside its characters."""
_PREFIXES = {
    "reasoning": "rs_",
    "message": "msg_",
    "function_call": "fc_",
    **{kind.item: kind.prefix for kind in KINDS.values()},
}
_TEXT_ITEMS = ("reasoning", "message")


@attrs.frozen
class _Texts:
    """Say how texts are told: the member of their item, the type of a part and what numbers it
    there, and what the names of the events begin with."""

    member: str
    part: str
    number: str
    events: str
    part_events: str


_CONTENT = _Texts(
    "content", "output_text", "content_index", "response.output_text", "response.content_part"
)
_REASONING = attrs.evolve(_CONTENT, part="reasoning_text", events="response.reasoning_text")
_SUMMARY = _Texts(
    "summary",
    "summary_text",
    "summary_index",
    "response.reasoning_summary_text",
    "response.reasoning_summary_part",
)


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(24)


@attrs.define
class Output:
    """The items of a response as they grow. Its events have no sequence numbers yet.

    Args:
      reader: of its answer.
      with_logprobs: texts carry those of their tokens.
      with_summary: reasoning is told as the summary of its item, and not as its content.
      tools: what the model may call, by the names that it knows.
      reports: the progress of the prompt, as events of type ``response.in_progress``; None for
        none.
    """

    _reader: AnswerReader
    with_logprobs: bool = False
    with_summary: bool = False
    tools: Mapping[str, Offered] = attrs.field(factory=dict)
    reports: Reports | None = None
    items: list[Json] = attrs.field(factory=list, init=False)
    ended: Ended | None = attrs.field(default=None, init=False)
    _open: str | None = attrs.field(default=None, init=False)
    """Type of the newest item, while it grows."""
    _text: list[str] = attrs.field(factory=list, init=False)
    """The pieces of the newest item."""
    _logprobs: KeptLogprobs = attrs.field(factory=KeptLogprobs, init=False)
    """The pieces of the newest item."""
    num_logprobs: int = attrs.field(default=0, init=False)
    """The number in all items, those of the alternatives included."""
    held_bytes: int = attrs.field(default=0, init=False)
    """The bytes that the items take."""
    _call: WrittenCall = attrs.field(factory=lambda: WrittenCall(""), init=False)
    """The newest item, if it is a call."""

    @property
    def streamed_bytes(self) -> int:
        """Return those bytes, and what the events take that repeat an item when it ends."""
        return self.held_bytes + REPEATED_BYTES * self.num_logprobs

    def take(self, results: Iterable[RawResult]) -> Iterator[Json]:
        """Return the events of these results."""
        for piece in self._reader.take(results):
            for members in () if self.reports is None else self.reports.before(0, piece):
                yield {"type": "response.in_progress", **members}
            match piece:
                case ReasoningDelta(text):
                    yield from self._part("reasoning")
                    yield self._grow(f"{self._texts.events}.delta", text)
                case ContentDelta(text, logprobs):
                    yield from self._part("message")
                    entries = logprobs if self.with_logprobs else ()
                    self._keep(entries)
                    bare = _without_bytes(entries)
                    yield self._grow(f"{self._texts.events}.delta", text, logprobs=bare)
                case ToolCallStart(_, call_id, name):
                    yield from self._close("completed")
                    self._call = WrittenCall(name, self.tools.get(name))
                    kind, members = self._call.begun
                    yield self._begin(kind, call_id=call_id, **members)
                case ArgumentsDelta(_, arguments):
                    for event, delta in self._call.feed(arguments):
                        yield {"type": event, **self._where, "delta": delta}
                case Ended():
                    self.ended = piece
                    cut = piece.finish_reason == "length"
                    yield from self._close("incomplete" if cut else "completed")
                case Prefilled():
                    pass

    @property
    def is_newest_long(self) -> bool:
        """Return whether the newest item has very many log probabilities."""
        return self._logprobs.is_long

    def _keep(self, entries: Sequence[Mapping[str, object]]) -> None:
        before = self._logprobs.held_bytes
        self._logprobs.add(entries)
        self.held_bytes += self._logprobs.held_bytes - before
        self.num_logprobs += sum(1 + len(top_of(entry)) for entry in entries)

    @property
    def _index(self) -> int:
        return len(self.items) - 1

    @property
    def _where(self) -> Json:
        """Return the members with which events name the newest item."""
        where: Json = {"item_id": self.items[-1]["id"], "output_index": self._index}
        return {**where, self._texts.number: 0} if self._open in _TEXT_ITEMS else where

    @property
    def _texts(self) -> _Texts:
        """Return how the texts of the newest item are told."""
        if self._open == "message":
            return _CONTENT
        return _SUMMARY if self.with_summary else _REASONING

    def _begin(self, kind: str, **members: object) -> Json:
        self._open = kind
        self._text, self._logprobs = [], KeptLogprobs()
        self.held_bytes += ITEM_BYTES
        item: Json = {"id": new_id(_PREFIXES[kind]), "type": kind, "status": "in_progress"}
        self.items.append(item | members)
        added = dict(self.items[-1])
        return {"type": "response.output_item.added", "output_index": self._index, "item": added}

    def _part(self, kind: str) -> Iterator[Json]:
        """Make an item of text the open one."""
        if self._open == kind:
            return
        yield from self._close("completed")
        if kind == "message":
            yield self._begin(kind, role="assistant", content=[])
        else:
            yield self._begin(kind, summary=[], content=[], encrypted_content=None)
        part = self._text_part("")
        yield {"type": f"{self._texts.part_events}.added", **self._where, "part": part}

    def _text_part(self, text: str) -> Json:
        part: Json = {"type": self._texts.part, "text": text}
        if self._open == "message":
            part |= {"annotations": [], "logprobs": self._logprobs.written(_with_bytes)}
        return part

    def _grow(self, event: str, text: str, **more: object) -> Json:
        self._text.append(text)
        self.held_bytes += PIECE_BYTES + text_bytes(text)
        return {"type": event, **self._where, "delta": text, **more}

    def _close(self, status: str) -> Iterator[Json]:
        """End the open item, if there is one."""
        if self._open is None:
            return
        item, where = self.items[-1], self._where
        item["status"] = status
        if self._open not in _TEXT_ITEMS:
            events, told = self._call.end()
            item |= told
            yield from ({**event, **where} for event in events)
        else:
            text = "".join(self._text)
            part, texts = self._text_part(text), self._texts
            item[texts.member] = [part]
            members: Json = {"text": text}
            if self._open == "message":
                members["logprobs"] = self._logprobs.written(_bare)
            yield {"type": f"{texts.events}.done", **where, **members}
            yield {"type": f"{texts.part_events}.done", **where, "part": part}
        self._open = None
        yield {"type": "response.output_item.done", "output_index": self._index, "item": item}


def _without_bytes(logprobs: Sequence[Mapping[str, object]]) -> list[Json]:
    """Leave the bytes out, as events do; content has them."""
    return [_bare(entry) for entry in logprobs]


def _bare(entry: Mapping[str, object]) -> Json:
    return logprob_with_top(entry, "token", "logprob")


def _with_bytes(entry: Mapping[str, object]) -> Json:
    return logprob_with_top(entry, "token", "logprob", "bytes")
