"""Calls in which every key is a tag of its own: MiniMax M3."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import attrs

from paddler_trio.language.answers.call_events import Emit, NotACallError, ToolSchemas
from paddler_trio.language.answers.call_syntax import NestedTags
from paddler_trio.language.answers.read_tagged import ArgumentsWriter
from paddler_trio.language.answers.text_source import Reading, Source, stops_of
from paddler_trio.language.answers.typed_values import Expected, expected_of, json_of

MAX_DEPTH = 32

_KEY = re.compile(r"<([^<>/\s]+)>")
_NESTING = frozenset({"object", "array"})


def read_nested_call(
    source: Source, syntax: NestedTags, schemas: ToolSchemas, emit: Emit
) -> Reading[None]:
    """One call; ``<invoke name="`` with its mark was taken.

    The name is passed on at once, the arguments when all of them are there.

    Raises:
      NotACallError: it does not end, or its tags do not match.
    """
    name = (yield from source.take_word('">'))[0].strip()
    if not name:
        raise NotACallError("a call without a name")
    writer = ArgumentsWriter(name, emit)
    body: list[str] = []
    if (yield from source.take_until(stops_of(f"{syntax.mark}</invoke>"), body.append)) is None:
        raise NotACallError("the call does not end")
    reader = _Body("".join(body), syntax.mark)
    for key, value in reader.pairs(schemas.get(name, {})):
        writer.begin_pair(key)
        writer.grow(value)
    writer.end()


@attrs.define(eq=False)
class _Body:
    """The arguments of one call, all of them there."""

    _text: str
    _mark: str
    _at: int = 0

    def pairs(self, schema: Mapping[str, object]) -> list[tuple[str, str]]:
        """Keys and the JSON text of their values."""
        found: list[tuple[str, str]] = []
        while (key := self._opening()) is not None:
            found.append((key, self._value(key, expected_of(schema, key), 0)))
            closing = f"{self._mark}</{key}>"
            while self._text[self._at :].lstrip().startswith(closing):  # written twice
                self._close(closing)
        if self._text[self._at :].strip():
            raise NotACallError("text between the arguments of a call")
        return found

    def _opening(self) -> str | None:
        """The key whose tag opens next, which is passed."""
        start = self._at
        while self._text[start : start + 1].isspace():
            start += 1
        if not self._text.startswith(self._mark, start):
            return None
        match = _KEY.match(self._text, start + len(self._mark))
        if match is None:
            return None
        self._at = match.end()
        return match[1]

    def _value(self, key: str, expected: Expected, depth: int) -> str:
        types = expected.types
        if depth > MAX_DEPTH:
            raise NotACallError(f"arguments are nested deeper than {MAX_DEPTH}")
        closing = f"{self._mark}</{key}>"
        inner = self._opening() if types & _NESTING else None
        if inner is not None:
            found: dict[str, list[str]] = {}
            following: str | None = inner
            while following is not None:
                inside = expected.member(following)
                if following == "item" and not inside.rules:
                    inside = expected.item()
                found.setdefault(following, []).append(self._value(following, inside, depth + 1))
                following = self._opening()
            self._close(closing)
            if found.keys() == {"item"} and "array" in types:
                return f"[{', '.join(found['item'])}]"
            # A key that is there several times was meant to have several values.
            members = (
                f"{json.dumps(name, ensure_ascii=False)}: "
                + (values[0] if len(values) == 1 else f"[{', '.join(values)}]")
                for name, values in found.items()
            )
            return f"{{{', '.join(members)}}}"
        end = self._text.find(closing, self._at)
        if end < 0:
            raise NotACallError(f"the argument {key!r} does not end")
        text = self._text[self._at : end]
        self._at = end + len(closing)
        return json_of(text, types)

    def _close(self, closing: str) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        if not self._text.startswith(closing, self._at):
            raise NotACallError(f"expected {closing!r} among the arguments")
        self._at += len(closing)
