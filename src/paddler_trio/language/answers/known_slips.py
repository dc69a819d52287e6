"""Models are known to write some things wrong: readers recover by this table, tests draw from it.

A slip is here only if what was meant is certain. Each is a way to write a call, given as it is
written rightly; what a reader needs to know of it stands beside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

import attrs

from paddler_trio.language.answers.call_syntax import (
    CallSyntax,
    JsonCalls,
    NamedJson,
    TaggedCalls,
)

WORDS: Final[Mapping[str, str]] = {"True": "true", "False": "false", "None": "null"}
"""Words of Python's where JSON has others."""

_OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "parameter": ("param", "parameters", "argument"),
    "param": ("parameter", "params"),
    "arg_value": ("arg_val", "arg_values", "arg_key", "value"),
    "function": ("functions", "invoke"),
    "invoke": ("function",),
}
"""By the name in a closing tag, what models close instead."""
_CLOSING = re.compile(
    r"</(?P<prefix>.*?)(?P<name>arg_value|tool_call|\w+(?=>))(?P<suffix>(:\w+)?)>", re.DOTALL
)
"""Names of tags may have a prefix (``atem:invoke``) or, Hunyuan's, a suffix (``tool_call:x``)."""


@lru_cache(maxsize=256)
def misspelt_ends(end: str, key: str = "") -> tuple[str, ...]:
    """Return what models write for the closing tag ``end``; with a ``key``, of the argument of this
    name.

    ``</parameter=path>``, and the tag of another family or without its prefix or suffix.
    """
    match = _CLOSING.fullmatch(end)
    if match is None:
        return ()
    prefix, name, suffix = match["prefix"], match["name"], match["suffix"]
    others = [f"</{prefix}{other}{suffix}>" for other in _OTHER_NAMES.get(name, ())]
    if prefix or suffix:
        others.append(f"</{name}>")
    if key:
        others += [f"</{prefix}{name}{suffix}={key}>", f"</{key}>"]
    return tuple(other for other in others if other != end)


def ends_of_call(syntax: TaggedCalls) -> tuple[str, ...]:
    """Return what ends a call, as it should be and misspelt; nothing where only its section ends
    it."""
    return (syntax.call_end, *misspelt_ends(syntax.call_end)) if syntax.call_end else ()


def strays_of(syntax: CallSyntax | None) -> tuple[str, ...]:
    """Return what may stand between two calls of a section because it was written twice."""
    match syntax:
        case TaggedCalls():
            return ends_of_call(syntax)
        case NamedJson(after_arguments=end) if end.strip():
            return (end.strip(),)
        case _:
            return ()


@attrs.frozen
class Slip:
    """A way to write calls wrong.

    Args:
      kinds: of syntaxes whose models do so.
      write: what is written for a call that is right, which it gets with its syntax; None where
        that call has no place for it.
    """

    name: str
    kinds: tuple[type[CallSyntax], ...]
    write: Callable[[str, CallSyntax], str | None]


def _replacing(pattern: str, replacement: str) -> Callable[[str, CallSyntax], str | None]:
    """The last match of ``pattern`` becomes ``replacement``, which may refer to its groups."""

    def write(call: str, _: CallSyntax) -> str | None:
        found = list(re.finditer(pattern, call, re.DOTALL))
        if not found:
            return None
        return call[: found[-1].start()] + found[-1].expand(replacement) + call[found[-1].end() :]

    return write


def _value_end_as(change: Callable[[str], str]) -> Callable[[str, CallSyntax], str | None]:
    """Every tag that ends a value is written as ``change`` has it."""

    def write(call: str, syntax: CallSyntax) -> str | None:
        assert isinstance(syntax, TaggedCalls)
        end = syntax.value_end
        written = change(end)
        return None if written == end or end not in call else call.replace(end, written)

    return write


def _call_end_as(change: Callable[[str], str]) -> Callable[[str, CallSyntax], str | None]:
    """The tag that ends the call is written as ``change`` has it."""

    def write(call: str, syntax: CallSyntax) -> str | None:
        assert isinstance(syntax, TaggedCalls)
        before, end, after = call.rpartition(syntax.call_end) if syntax.call_end else ("", "", "")
        written = change(end)
        return None if not end or written == end else f"{before}{written}{after}"

    return write


def _misspelt(end: str) -> str:
    others = misspelt_ends(end)
    return others[0] if others else end


_JSON: Final = (JsonCalls, NamedJson)
_TAGS: Final = (TaggedCalls,)

SLIPS: Final[tuple[Slip, ...]] = (
    Slip("raw line breaks in a text", _JSON, lambda call, _: call.replace("\\n", "\n")),
    Slip("raw tabs in a text", _JSON, lambda call, _: call.replace("\\t", "\t")),
    Slip("a quote escaped as in Python", _JSON, lambda call, _: call.replace("'", "\\'")),
    Slip("a brace too many", _JSON, _replacing(r"\}(?=[^{}]*\Z)", "}}")),
    Slip("the last brace forgotten", (JsonCalls,), _replacing(r"\}(?=[^{}]*\Z)", "")),
    Slip("a comma before a brace", _JSON, _replacing(r'(["\w])\s*\}', r"\1,}")),
    Slip("a word of Python's", _JSON, lambda call, _: call.replace(": true", ": True")),
    Slip("the end of a value twice", _TAGS, _value_end_as(lambda end: end + end)),
    Slip("the end of a value on two lines", _TAGS, _value_end_as(lambda end: f"{end}\n{end}")),
    Slip("the end of a value misspelt", _TAGS, _value_end_as(_misspelt)),
    Slip("the end of a call twice", _TAGS, _call_end_as(lambda end: f"{end}\n{end}")),
    Slip("the end of a call misspelt", _TAGS, _call_end_as(_misspelt)),
)
