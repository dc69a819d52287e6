"""One model writes its answers in one way: its reasoning, its calls, and the marks around them.

A format is found once, when a template is loaded (``families``, ``format_detection``), and is plain
data from then on: the classifier takes its markers from it, the tool-call reader its syntax, and
the grammar of calls all of it.
"""

from __future__ import annotations

from functools import cached_property, partial

import attrs

from paddler_trio.language.answers.automaton import Goal, Marker, SectionRules, TokenClass
from paddler_trio.language.answers.call_syntax import CallSyntax, JsonCalls, NamedJson, TaggedCalls
from paddler_trio.language.answers.value_tracker import ValueTracker

_CONTENT, _REASONING = TokenClass.CONTENT, TokenClass.REASONING
_CALL, _UNDETERMINABLE = TokenClass.TOOL_CALL, TokenClass.UNDETERMINABLE


@attrs.frozen
class CallFormat:
    """Tool calls as a model writes them.

    ``opener`` comes before the first call, and triggers a lazy grammar; it is empty where calls
    have no mark (``{"name": ...}`` at the beginning of an answer). ``closer`` comes
    after the last. With ``one_a_section`` every further call has both around it again; ``between``
    stands between two calls of a section, or between two sections. ``kept`` characters at the end
    of the opener belong to the call. ``in_header``: the name stands in the opener, as
    ``opener`` + name + ``after_header_name``. ``may_be_bare``: models also write calls at the
    beginning of an answer without the opener. ``id_chars``: ids are that many letters and digits.
    """

    opener: str
    syntax: CallSyntax
    closer: str = ""
    one_a_section: bool = attrs.field(default=False, kw_only=True)
    between: str = attrs.field(default="", kw_only=True)
    kept: int = attrs.field(default=0, kw_only=True)
    in_header: bool = attrs.field(default=False, kw_only=True)
    after_header_name: str = attrs.field(default="", kw_only=True)
    may_be_bare: bool = attrs.field(default=False, kw_only=True)
    id_chars: int | None = attrs.field(default=None, kw_only=True)

    @property
    def is_bare(self) -> bool:
        """Calls differ from content only by how they begin."""
        return not self.opener

    @property
    def needs_probe(self) -> bool:
        """The beginning of an answer has to be probed for a call without marker."""
        return self.is_bare or self.may_be_bare


@attrs.frozen(kw_only=True)
class ModelFormat:
    """Everything about a model that decides what its answers mean.

    Args:
      name: of the family, for people.
      reasoning_open, reasoning_close: None where the model does not reason in the open.
      calls: None where no way to call tools is known of the model.
      calls_end_reasoning: an opener of calls ends reasoning that was not closed; otherwise it is
        part of the reasoning, as in the thoughts of a model that quotes its own markers.
      other_openers: further texts that begin calls.
      content_marks: texts that only mark where content begins or ends; they are not shown.
      turn_open: what the model writes behind ``reasoning_close`` before anything else.
      content_open: what it writes before every text for the user.
      more_markers: further markers of the classifier, by the class they count in.
    """

    name: str
    reasoning_open: str | None = None
    reasoning_close: str | None = None
    calls: CallFormat | None = None
    calls_end_reasoning: bool = True
    other_openers: tuple[Marker, ...] = ()
    content_marks: tuple[str, ...] = ()
    turn_open: str = ""
    content_open: str = ""
    more_markers: tuple[tuple[TokenClass, Marker], ...] = ()

    @cached_property
    def rules(self) -> SectionRules:
        """Return what each marker does in each class of text."""
        syntax = None if self.calls is None else self.calls.syntax
        if isinstance(syntax, TaggedCalls):
            return SectionRules(_markers_of(self), partial(ValueTracker, syntax))
        return SectionRules(_markers_of(self))

    @cached_property
    def rules_without_calls(self) -> SectionRules:
        """Return the rules where no tools are offered: what looks like a call is content with
        its marks."""
        return SectionRules(_markers_of(self._without_calls))

    @cached_property
    def rules_of_form(self) -> SectionRules:
        """Return the rules for an answer whose content is bound to a form: what looks like a
        mark in it is the text of a value. Families whose content has marks of its own keep them."""
        markers = _markers_of(self._without_calls)
        has_own = bool(self.content_open or self.content_marks)
        has_own |= any(kind is _CONTENT for kind, _ in self.more_markers)
        return SectionRules(markers if has_own else {**markers, _CONTENT: ()})

    @property
    def _without_calls(self) -> ModelFormat:
        more = tuple(
            (kind, _without_calls(marker))
            for kind, marker in self.more_markers
            if kind is not _CALL and marker.leads_to is not _CALL
        )
        return attrs.evolve(self, calls=None, other_openers=(), more_markers=more)

    @property
    def reasons(self) -> bool:
        """Return whether the model has a section of reasoning."""
        return self.reasoning_close is not None


def _without_calls(marker: Marker) -> Marker:
    """Return a marker behind which what its header calls a message to a tool is content."""
    read = marker.read_header
    if read is None:
        return marker

    def read_header(header: str) -> Goal | None:
        goal = read(header)
        return Goal(_CONTENT) if goal is not None and goal.token_class is _CALL else goal

    return attrs.evolve(marker, read_header=read_header)


def _markers_of(form: ModelFormat) -> dict[TokenClass, tuple[Marker, ...]]:
    """Return what each marker does in each class.

    Openers open in any text but calls. Closers close their section; in text of unknown class they
    decide its class. In content nothing is open, so a closer is plain text, but for one that was
    written twice. Where calls have no
    closer the next opener begins the next section.
    """
    calls = form.calls
    opens_call: list[Marker] = list(form.other_openers)
    closes_call: list[Marker] = []
    if calls is not None and calls.opener and not calls.in_header:
        opens_call.append(Marker(calls.opener, _CALL, kept=calls.kept))
    repeats: list[Marker] = []
    if calls is not None and calls.closer:
        closes_call.append(Marker(calls.closer, _CONTENT))
        repeats.append(Marker(calls.closer, _CONTENT, repeats=True))
    opens_reasoning = [Marker(form.reasoning_open, _REASONING)] if form.reasoning_open else []
    closes_reasoning = [Marker(form.reasoning_close, _CONTENT)] if form.reasoning_close else []
    decides = [attrs.evolve(marker, text_was=_REASONING) for marker in closes_reasoning]
    marks = [Marker(mark, _CONTENT) for mark in form.content_marks]
    markers: dict[TokenClass, list[Marker]] = {
        _UNDETERMINABLE: [*marks, *opens_call, *opens_reasoning, *closes_call, *decides],
        _CONTENT: [*repeats, *marks, *opens_call, *opens_reasoning],
        _REASONING: [
            *(opens_call if form.calls_end_reasoning else ()),
            *opens_reasoning,
            *closes_reasoning,
        ],
        _CALL: closes_call or opens_call,
    }
    if calls is not None and isinstance(calls.syntax, JsonCalls | NamedJson | TaggedCalls):
        markers[_CALL] = [attrs.evolve(marker, spares_values=True) for marker in markers[_CALL]]
    for kind, marker in form.more_markers:
        markers[kind].append(marker)
    return {kind: tuple(found) for kind, found in markers.items()}
