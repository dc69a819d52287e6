"""The format of a template: a known family's, what probing shows, or what an operator sets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import attrs

from paddler_trio.language.answers.automaton import Marker
from paddler_trio.language.answers.call_syntax import HERMES, JsonCalls, TaggedCalls
from paddler_trio.language.answers.families import FAMILIES, REASONING_MARKS, Family
from paddler_trio.language.answers.model_format import CallFormat, ModelFormat
from paddler_trio.language.answers.pieces import TokenClass
from paddler_trio.language.answers.probing import probed_format, quotes_texts
from paddler_trio.language.templates.chat_template import ChatTemplate
from paddler_trio.wire.trio.desired_state_extras import Markers

_JINJA_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
GENERIC_CALLS = CallFormat(opener="", syntax=JsonCalls(), between="\n")
"""What models do that were never trained on a way to call tools, if their prompt offers some."""
_BORROWED_OPENERS = tuple(
    Marker(mark, TokenClass.TOOL_CALL) for mark in ("<tool_call>", "[TOOL_CALLS]")
)
_BORROWED_CLOSER = Marker("</tool_call>", TokenClass.CONTENT, spares_values=True)
"""Marks of other families, which models write whose own way has none."""


def known_format(template_source: str, families: Iterable[Family] = FAMILIES) -> ModelFormat | None:
    """The format of the family whose tool calls the template mentions; None if none is known.

    Comments do not count. The reasoning markers are the family's, or those the template mentions.
    """
    source = _JINJA_COMMENT.sub("", template_source)
    for family in families:
        if family.matches(source):
            return _with_reasoning(family.format_of(source), source)
    return None


@lru_cache(maxsize=16)  # the templates in force
def format_of(template: ChatTemplate, explicit: Markers | None = None) -> ModelFormat:
    """How the model behind ``template`` writes; once per load, milliseconds.

    Args:
      explicit: what an operator sets over the template's own. An empty ``reasoning_close`` or
        ``tool_open`` says that there is no such section.
    """
    form = known_format(template.source) or probed_format(template) or ModelFormat(name="json")
    form = _with_reasoning(form, _JINJA_COMMENT.sub("", template.source))
    calls = form.calls
    if calls is None or (form.name == "probed" and calls.is_bare):
        form = attrs.evolve(
            form,
            calls=GENERIC_CALLS if calls is None else calls,
            other_openers=_BORROWED_OPENERS,
            more_markers=((TokenClass.TOOL_CALL, _BORROWED_CLOSER),),
        )
    elif isinstance(calls.syntax, TaggedCalls) and quotes_texts(template):
        syntax = attrs.evolve(calls.syntax, quoted=True)
        form = attrs.evolve(form, calls=attrs.evolve(calls, syntax=syntax))
    return form if explicit is None else _overridden(form, explicit)


def _with_reasoning(form: ModelFormat, source: str) -> ModelFormat:
    """The format with the reasoning markers that the template mentions, if it has none yet."""
    if form.reasoning_close is not None:
        return form
    for opening, closing in REASONING_MARKS:
        if opening in source or closing in source:
            return attrs.evolve(form, reasoning_open=opening, reasoning_close=closing)
    return form


def _overridden(form: ModelFormat, explicit: Markers) -> ModelFormat:
    if explicit.reasoning_open is not None:
        form = attrs.evolve(form, reasoning_open=explicit.reasoning_open or None)
    if explicit.reasoning_close is not None:
        form = attrs.evolve(form, reasoning_close=explicit.reasoning_close or None)
    if form.reasoning_close is None:  # what cannot end is no section
        form = attrs.evolve(form, reasoning_open=None)
    calls = form.calls
    if explicit.tool_open == "":
        return attrs.evolve(form, calls=None, other_openers=())
    if explicit.tool_open is not None:
        syntax = HERMES if calls is None else calls.syntax
        calls = CallFormat(opener=explicit.tool_open, syntax=syntax, one_a_section=True)
    if explicit.tool_close is not None and calls is not None:
        calls = attrs.evolve(calls, closer=explicit.tool_close)
    return attrs.evolve(form, calls=calls)
