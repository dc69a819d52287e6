"""Distinguishing tool calls from content where models write calls without any marker.

Llama 3 answers ``{"name": "f", "parameters": {...}}``, others a list of such objects or
``[f(a=1)]``, some in a code fence. An answer, or a line of it, that begins like that, with the name
of a tool that was offered and its arguments, is a call; it is held back only until that is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import attrs

from paddler_trio.language.answers.automaton import OpeningProbe, ProbeResult
from paddler_trio.language.answers.call_syntax import QuotedObjects
from paddler_trio.language.answers.model_format import ModelFormat

MAX_HELD_CHARS = 400

_BEFORE_NAME = re.compile(
    r"\[?\s*\{\s*"
    r'(?:"type"\s*:\s*"function"\s*,\s*)?'
    r'(?:"function"\s*:\s*\{\s*)?'
    r'"(?:name|function)"\s*:\s*"'
)
_AFTER_NAME = ("}", ',"arguments":', ',"parameters":')
_FENCE = "```json"
_PYTHON_NAME = re.compile(r"\[\s*([A-Za-z_][\w.-]*)\s*\(")
# The texts above, blanks left out, as far as they may have come: what is held back must be one.
_SKELETONS = tuple(
    f'{bracket}{{{extra}{nested}"{key}":"'
    for bracket in ("", "[")
    for extra in ("", '"type":"function",')
    for nested in ("", '"function":{')
    for key in ("name", "function")
)
_BLANKS = re.compile(r"\s+")


def probe_of(form: ModelFormat, tool_names: Iterable[str]) -> OpeningProbe | None:
    """Recognises a call to one of these tools without a marker; None where calls have one, or there
    are no tools."""
    names = frozenset(tool_names)
    if form.calls is None or not form.calls.needs_probe or not names:
        return None
    syntax = form.calls.syntax
    return _BareCallProbe(names, syntax.before_name if isinstance(syntax, QuotedObjects) else "")


@attrs.frozen
class _BareCallProbe:
    """A probe with a ``prefix`` looks for ``f{`` behind that, and for nothing else."""

    names: frozenset[str]
    prefix: str

    def __call__(self, text: str) -> ProbeResult:
        beginning = text[:MAX_HELD_CHARS]
        if self.prefix:
            likeness = _likeness(beginning, [f"{self.prefix}{name}{{" for name in self.names])
        else:
            likeness = self._likeness_of(beginning)
        if likeness is ProbeResult.MAY_BECOME_ONE and len(text) >= MAX_HELD_CHARS:
            return ProbeResult.IS_NONE
        return likeness

    def _likeness_of(self, text: str) -> ProbeResult:
        if text.startswith(_FENCE):
            text = text[len(_FENCE) :].lstrip()
        if _FENCE.startswith(text):
            return ProbeResult.MAY_BECOME_ONE
        if text[:1] not in ("{", "["):
            return ProbeResult.IS_NONE
        found = _BEFORE_NAME.match(text)
        if found is not None:
            name, quote, after = text[found.end() :].partition('"')
            if quote:
                if name not in self.names:
                    return ProbeResult.IS_NONE
                return _likeness(_BLANKS.sub("", after), _AFTER_NAME)
            may_be = any(known.startswith(name) for known in self.names)
            return ProbeResult.MAY_BECOME_ONE if may_be else ProbeResult.IS_NONE
        skeleton = _BLANKS.sub("", text)
        if any(known.startswith(skeleton) for known in _SKELETONS):
            return ProbeResult.MAY_BECOME_ONE
        if text.startswith("["):
            call = _PYTHON_NAME.match(text)
            if call is not None:
                return ProbeResult.IS_CALL if call[1] in self.names else ProbeResult.IS_NONE
            if any(f"[{known}(".startswith(skeleton) for known in self.names):
                return ProbeResult.MAY_BECOME_ONE
        return ProbeResult.IS_NONE


def _likeness(text: str, beginnings: Sequence[str]) -> ProbeResult:
    """Compare a text to one that has to begin with one of these."""
    if text.startswith(tuple(beginnings)):
        return ProbeResult.IS_CALL
    may_be = any(beginning.startswith(text) for beginning in beginnings)
    return ProbeResult.MAY_BECOME_ONE if may_be else ProbeResult.IS_NONE
