"""Tools that take a text as it is, offered as functions of one text: ``{"input": "..."}``.

OpenAI's custom tools want text in a grammar of their own (a patch, a query), and no JSON. Models
call functions, so the text travels as the one argument of a function, and is taken out of the JSON
while it is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import attrs

from paddler_trio.balancer.apis.shapes import Json

INPUT = "input"
_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_INSIDE = re.compile(
    r'(?:[^"\\]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u])+"
)
"""Whole characters of a JSON string; half a pair of surrogates waits for the other."""
_MAX_HEAD_PIECES = 64


def function_of(name: object, description: object, form: object) -> Json:
    """Return the function that stands for a tool of free text.

    ``form`` is the tool's ``format``: of a grammar the model is told, since it is not held to it.
    """
    told = [str(description)] if description else []
    match form:
        case {"type": "grammar", "definition": str(definition), "syntax": syntax}:
            told.append(f"The input has to fit this {syntax} grammar:\n{definition}")
    text: Json = {"type": "string", "description": "The whole input, as plain text."}
    parameters: Json = {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}
    function: Json = {"name": name, "parameters": parameters}
    return {**function, "description": "\n\n".join(told)} if told else function


def arguments_of(text: object) -> str:
    """Return the arguments, as JSON text, of a call that was made with ``text``."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


@attrs.define
class FreeText:
    """The text inside the arguments of one call, as they are written.

    What was told of it is the beginning of what it is in the end.
    """

    _waiting: str = attrs.field(default="", init=False)
    _before: list[str] = attrs.field(factory=list, init=False)
    """What came before the text, if it comes at all."""
    _is_inside: bool = attrs.field(default=False, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _told: list[str] = attrs.field(factory=list, init=False)

    @property
    def text(self) -> str:
        """Return all that was told so far."""
        return "".join(self._told)

    def feed(self, arguments: str) -> str:
        """Take the next piece of JSON; return the next piece of the text, empty while it is
        unknown."""
        if self._has_ended:
            return ""
        if not self._is_inside:
            self._before.append(arguments)
            if len(self._before) > _MAX_HEAD_PIECES:
                return ""
            begun = "".join(self._before)
            head = _HEAD.match(begun)
            if head is None:
                return ""
            self._is_inside, arguments = True, begun[head.end() :]
        self._waiting += arguments
        inside = _INSIDE.match(self._waiting)
        piece = "" if inside is None else inside.group()
        self._waiting = self._waiting[len(piece) :]
        self._has_ended = self._waiting.startswith('"')
        return self._tell(_plain(piece))

    def end(self) -> str:
        """Return the rest of the text: all of it where the arguments are others than were asked
        for."""
        if self._is_inside:
            return ""
        return self._tell(_text_of("".join(self._before)))

    def _tell(self, piece: str) -> str:
        if piece:
            self._told.append(piece)
        return piece


def _plain(inside: str) -> str:
    """Return what stands inside the quotes of a JSON string; as it is where an escape is none."""
    try:
        return str(json.loads(f'"{inside}"', strict=False))
    except ValueError:
        return inside


def _text_of(arguments: str) -> str:
    try:
        value = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return arguments
    if isinstance(value, Mapping):
        texts = [value[INPUT]] if INPUT in value else list(value.values())
        if len(texts) == 1 and isinstance(texts[0], str):
            return texts[0]
    return value if isinstance(value, str) else arguments
