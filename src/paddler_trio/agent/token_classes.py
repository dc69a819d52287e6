"""What a piece of an answer is: content, reasoning, part of a tool call, or nobody can say.

Models mark sections with texts such as ``<think>``; which ones follows from the chat template in
force, because that is what they were trained with. The classifier walks the answer as an
automaton over its text:

    ========================  ==================  =========  ===============  ==========
    section                   reasoning opens     closes     tool call opens  closes
    ========================  ==================  =========  ===============  ==========
    undeterminable, content   reasoning           content*   tool call        content*
    reasoning                 reasoning           content    tool call        plain text
    tool call                 plain text          plain text plain text**     content
    ========================  ==================  =========  ===============  ==========

    *  only while undeterminable; in content nothing is open, so a close marker is plain text
    ** where calls have no close marker, the next opener starts the next call

Three invariants, whatever pieces the text arrives in: the pieces joined are the text without its
markers, in order; the classes do not depend on how the text was cut; and what is held back is
always, to the letter, the beginning of a marker that would count here.
"""

from __future__ import annotations

import re
from functools import lru_cache

import attrs

from paddler_trio.agent.answers.automaton import Automaton, Marker, OpeningProbe, SectionRules
from paddler_trio.agent.answers.pieces import Piece, TokenClass

__all__ = [
    "Markers",
    "Piece",
    "TokenClass",
    "TokenClassifier",
    "derive_markers",
    "opening_class",
    "rules_of",
]


@attrs.frozen
class Markers:
    """The texts that open and close sections; None where the model has no such section.

    ``tool_close`` may be None with ``tool_open`` set: such calls last until the answer ends.
    """

    reasoning_open: str | None = None
    reasoning_close: str | None = None
    tool_open: str | None = None
    tool_close: str | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return any(attrs.astuple(self))


# Openers and closers by family, the more telling first: a template may mention several.
_REASONING_FAMILIES = (
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<think>", "</think>"),
)
_TOOL_FAMILIES: tuple[tuple[str, str | None], ...] = (
    ("[TOOL_CALLS]", None),
    ("<minimax:tool_call>", "</minimax:tool_call>"),
    ("<seed:tool_call>", "</seed:tool_call>"),
    ("<|START_ACTION|>", "<|END_ACTION|>"),
    ("<|tool_call>", "<tool_call|>"),
    ("<|tool_call|>", "<|/tool_call|>"),
    ("<|tool_call|>", None),
    ("<|tool_call_start|>", "<|tool_call_end|>"),
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),  # noqa: RUF001 - as DeepSeek writes it
    ("<TOOLCALL>", "</TOOLCALL>"),
    ("<tool_call>", "</tool_call>"),
    ("<tool_calls>", "</tool_calls>"),
)
_JINJA_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


def derive_markers(template_source: str) -> Markers:
    """The markers of the families that the text of a chat template mentions.

    Comments do not count. A template of no known family gives markers of which none is set.
    """
    source = _JINJA_COMMENT.sub("", template_source)
    reasoning_open, reasoning_close = next(
        (family for family in _REASONING_FAMILIES if family[0] in source or family[1] in source),
        (None, None),
    )
    tool_open, tool_close = next(
        (
            family
            for family in _TOOL_FAMILIES
            if family[0] in source and (family[1] or "") in source
        ),
        (None, None),
    )
    return Markers(reasoning_open, reasoning_close, tool_open, tool_close)


class TokenClassifier(Automaton):
    """The automaton of one answer; never raises, whatever the model writes.

    Without markers every piece is undeterminable and passes at once.
    """

    __slots__ = ()

    def __init__(
        self,
        markers: Markers | SectionRules,
        opening: TokenClass = TokenClass.UNDETERMINABLE,
        probe: OpeningProbe | None = None,
    ) -> None:
        rules = markers if isinstance(markers, SectionRules) else rules_of(markers)
        super().__init__(rules, opening if rules else TokenClass.UNDETERMINABLE, probe)


def opening_class(
    rendered_with_generation_prompt: str, rendered_without: str, markers: Markers
) -> TokenClass:
    """The class an answer starts in: what the generation prompt alone says.

    Some templates open the reasoning section for the model, or open and close it at once to skip
    reasoning. Only what the template adds for the answer is read, so that markers inside somebody's
    message decide nothing.
    """
    with_prompt, without = rendered_with_generation_prompt, rendered_without
    start = len(without)
    if not with_prompt.startswith(without):
        # The template ends the conversation differently without a generation prompt. Go back to
        # the first difference, and further to the start of a marker that it may have cut.
        shared = zip(with_prompt, without, strict=False)
        start = next((i for i, (a, b) in enumerate(shared) if a != b), len(with_prompt))
        for marker in filter(None, attrs.astuple(markers)):
            for begin in range(max(0, start - len(marker) + 1), start):
                if with_prompt.startswith(marker, begin):
                    start = begin
                    break
    classifier = TokenClassifier(markers)
    classifier.feed(with_prompt[start:])
    return classifier.current


@lru_cache(maxsize=64)  # one entry a template in force; a request builds none
def rules_of(markers: Markers) -> SectionRules:
    """The table at the top of this file. Where two markers are the same text, closing wins."""
    opens_call = _marker(markers.tool_open, TokenClass.TOOL_CALL)
    opens_reasoning = _marker(markers.reasoning_open, TokenClass.REASONING)
    closes_call = _marker(markers.tool_close, TokenClass.CONTENT)
    closes_reasoning = _marker(markers.reasoning_close, TokenClass.CONTENT)
    return SectionRules(
        {
            TokenClass.UNDETERMINABLE: (
                *opens_call,
                *opens_reasoning,
                *closes_call,
                *closes_reasoning,
            ),
            TokenClass.CONTENT: (*opens_call, *opens_reasoning),
            TokenClass.REASONING: (*opens_call, *opens_reasoning, *closes_reasoning),
            TokenClass.TOOL_CALL: closes_call or opens_call,
        }
    )


def _marker(marker: str | None, leads_to: TokenClass) -> tuple[Marker, ...]:
    return (Marker(marker, leads_to),) if marker else ()
