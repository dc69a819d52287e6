"""Requests of other people's clients without a word of theirs: what is where, how long, how often.

`Shapes` takes the texts, names and ids out of recorded requests; `Made` puts own ones in. Words of
the protocols stay: kinds, roles, formats. A name, of a tool or a property, is the same name
wherever it stands, and so is an id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import attrs

KEPT: Final = frozenset(
    {
        *("type", "role", "format", "$schema", "tool_choice", "include", "effort", "summary"),
        *("status", "phase", "truncation", "verbosity", "detail", "ttl", "display", "syntax"),
        *("keep", "service_tier", "execution", "scope", "reasoning_effort", "model"),
    }
)
"""Fields with words of a protocol."""
WORD: Final = re.compile(r"[\w.:/#-]{1,64}")
NAMED: Final = frozenset({"name", "namespace"})
NAMES_AS_KEYS: Final = frozenset({"properties", "$defs", "definitions", "input", "arguments"})
IDS: Final = frozenset({"id", "call_id", "tool_call_id", "tool_use_id", "prompt_cache_key"})
JSON: Final = "<json>"
TEXT: Final = re.compile(r"<text (\d+)>")
PATTERN: Final = "^[a-z]+$"


@attrs.define
class Shapes:
    """What has been taken out of the requests of one client so far."""

    _names: dict[str, str] = attrs.field(factory=dict)
    _ids: dict[str, str] = attrs.field(factory=dict)

    def of(self, value: Any, key: str = "") -> Any:
        """Return the shape of a request, or of a part of it that stands below ``key``."""
        match value:
            case dict() if key in NAMES_AS_KEYS:
                return {self._name(name): self.of(each) for name, each in value.items()}
            case dict():
                return {name: self.of(each, name) for name, each in value.items()}
            case list():
                return [self.of(each, key if isinstance(each, str) else "") for each in value]
            case str():
                return self._text(value, key)
        return value

    def _text(self, text: str, key: str) -> Any:
        if key in IDS:
            kind = re.match(r"[a-z]*", text)
            assert kind is not None
            return self._ids.setdefault(text, f"{kind[0]}_{len(self._ids) + 1}")
        if key == "required" or (key in NAMED and WORD.fullmatch(text)):
            return self._name(text)
        if key == "pattern":
            return PATTERN
        if key == "$ref":
            above, _, last = text.rpartition("/")
            return f"{above}/{self._name(last)}"
        if key in KEPT and WORD.fullmatch(text):
            return text
        try:
            inner = json.loads(text)
        except ValueError:
            inner = None
        named = {JSON: self.of(inner, "arguments")} if isinstance(inner, dict) else None
        return named or f"<text {len(text)}>"

    def _name(self, name: str) -> str:
        return self._names.setdefault(name, f"name_{len(self._names) + 1}")


@attrs.define
class Made:
    """A maker of requests from shapes.

    Args:
      begin: what every text begins with that has room for it.
    """

    begin: str
    _count: int = 0

    def of(self, shape: Any) -> Any:
        """Return a request of this shape."""
        match shape:
            case {"<json>": inner}:
                return json.dumps(self.of(inner))
            case dict():
                return {name: self.of(each) for name, each in shape.items()}
            case list():
                return [self.of(each) for each in shape]
            case str() if text := TEXT.fullmatch(shape):
                return self._text(int(text[1]))
        return shape

    def _text(self, length: int) -> str:
        self._count += 1
        words = f"{self.begin} {self._count} " if length > len(self.begin) else f"{self._count} "
        return (words + "as many words as there were. " * (length // 29 + 1))[:length]


def first_and_last(*runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what lies between the first and the last request of one path with the same fields.

    What several runs have in common is that of the last.

    A client sends its whole conversation again, so the last has all that those before it had.
    """
    groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for run in runs:
        own: dict[tuple[object, ...], list[dict[str, Any]]] = {}
        for request in run:
            own.setdefault((request["path"], *sorted(request["body"])), []).append(request)
        groups |= own
    return [each for group in groups.values() for each in (group[0], *group[1:][-1:])]
