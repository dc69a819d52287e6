"""The classes of text in an answer, and a piece of one class."""

from __future__ import annotations

from enum import Enum

import attrs


class TokenClass(Enum):
    """The four classes of visible text; the values are for logs, not for the wire."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    UNDETERMINABLE = "undeterminable"


@attrs.frozen
class Piece:
    """Some text of one class.

    ``section`` counts the markers passed before it: two tool call pieces belong to the same
    stretch between markers exactly when their sections are equal. ``recipient`` is the tool that
    the marker before a tool call named, in formats that name it there. ``came_from`` is the other
    class that the text before its section was of; None while there was none.
    """

    token_class: TokenClass
    text: str
    section: int
    recipient: str | None = None
    came_from: TokenClass | None = None
