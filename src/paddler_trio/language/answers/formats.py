"""The format of a template: its family's, what probing shows, or what an operator says."""

from __future__ import annotations

from functools import lru_cache

import attrs

from paddler_trio.language.answers.automaton import Marker
from paddler_trio.language.answers.call_syntax import HERMES, JsonCalls, TaggedCalls
from paddler_trio.language.answers.families import known_format, with_reasoning
from paddler_trio.language.answers.model_format import CallFormat, ModelFormat
from paddler_trio.language.answers.pieces import TokenClass
from paddler_trio.language.answers.probing import probed_format, quotes_texts
from paddler_trio.language.templates.chat_template import ChatTemplate


@attrs.frozen(kw_only=True)
class ExplicitMarkers:
    """Markers that an operator sets over those of the template; None leaves the template's.

    An empty ``reasoning_close`` or ``tool_open`` says that there is no such section.
    """

    reasoning_open: str | None = None
    reasoning_close: str | None = None
    tool_open: str | None = None
    tool_close: str | None = None


_BARE_JSON = CallFormat(opener="", syntax=JsonCalls(), between="\n")
"""What models do that were never trained on a way to call tools, if they are told of some."""
_BORROWED_OPENERS = tuple(
    Marker(mark, TokenClass.TOOL_CALL) for mark in ("<tool_call>", "[TOOL_CALLS]")
)
_BORROWED_CLOSER = Marker("</tool_call>", TokenClass.CONTENT, spares_values=True)
"""Marks of others that models write whose own way has none."""


@lru_cache(maxsize=16)  # the templates in force
def format_of(template: ChatTemplate, explicit: ExplicitMarkers | None = None) -> ModelFormat:
    """How the model behind ``template`` writes; once per load, milliseconds."""
    form = known_format(template.source) or probed_format(template) or ModelFormat(name="json")
    form = with_reasoning(form, template.source)
    calls = form.calls
    if calls is None or (form.name == "probed" and calls.is_bare):
        form = attrs.evolve(
            form,
            calls=_BARE_JSON if calls is None else calls,
            other_openers=_BORROWED_OPENERS,
            more_markers=((TokenClass.TOOL_CALL, _BORROWED_CLOSER),),
        )
    elif isinstance(calls.syntax, TaggedCalls) and quotes_texts(template):
        syntax = attrs.evolve(calls.syntax, quoted=True)
        form = attrs.evolve(form, calls=attrs.evolve(calls, syntax=syntax))
    return form if explicit is None else _overridden(form, explicit)


def _overridden(form: ModelFormat, explicit: ExplicitMarkers) -> ModelFormat:
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
