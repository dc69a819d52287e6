"""Rules of the simplest kind: markers that open and close reasoning, and calls.

========================  ==================  =========  ===============  ==========
section                   reasoning opens     closes     tool call opens  closes
========================  ==================  =========  ===============  ==========
undeterminable, content   reasoning           content*   tool call        content*
reasoning                 reasoning           content    tool call        plain text
tool call                 plain text          plain text plain text**     content
========================  ==================  =========  ===============  ==========

*  only while undeterminable; in content nothing is open, so a close marker is plain text
** where calls have no close marker, the next opener starts the next call
"""

from __future__ import annotations

import attrs

from paddler_trio.language.answers.automaton import Automaton, Marker, SectionRules, TokenClass


@attrs.frozen
class Markers:
    """Each text may be missing; none of them is empty."""

    reasoning_open: str | None = None
    reasoning_close: str | None = None
    tool_open: str | None = None
    tool_close: str | None = None


def automaton(markers: Markers, opening: TokenClass = TokenClass.UNDETERMINABLE) -> Automaton:
    """One answer, which begins in that class. Where two markers are one text, closing wins."""
    opens_call = _marker(markers.tool_open, TokenClass.TOOL_CALL)
    opens_reasoning = _marker(markers.reasoning_open, TokenClass.REASONING)
    closes_call = _marker(markers.tool_close, TokenClass.CONTENT)
    closes_reasoning = _marker(markers.reasoning_close, TokenClass.CONTENT)
    opens = (*opens_call, *opens_reasoning)
    rules = {
        TokenClass.UNDETERMINABLE: (*opens, *closes_call, *closes_reasoning),
        TokenClass.CONTENT: opens,
        TokenClass.REASONING: (*opens, *closes_reasoning),
        TokenClass.TOOL_CALL: closes_call or opens_call,
    }
    return Automaton(SectionRules(rules), opening)


def _marker(text: str | None, leads_to: TokenClass) -> tuple[Marker, ...]:
    return (Marker(text, leads_to),) if text else ()
