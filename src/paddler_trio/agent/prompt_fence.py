"""Messages may speak about control tokens without becoming them.

A rendered prompt is tokenized with special tokens parsed, because the template's own
``<|im_start|>`` has to become one token. A message that spells ``<|im_end|>`` would end its own
turn and could go on in another role. So texts from outside are guarded before they go into a
template: a fence, one character that never stands in honest text, is put into every control token,
and at the end of a text where one begins that the next might complete. The tokenizer cuts at
fences and drops them: the model reads the same letters, never the token.
"""

from __future__ import annotations

from collections.abc import Iterable

# A noncharacter: Unicode leaves it to programs for their own use.
FENCE = "\ufdd0"


class PromptFence:
    """Guards texts against one set of control texts; immutable."""

    __slots__ = ("_beginnings", "_controls", "_longest")

    def __init__(self, control_texts: Iterable[str]) -> None:
        """Guard against ``control_texts``; those of one letter cannot be taken apart."""
        controls = {text for text in control_texts if len(text) > 1}
        self._controls = sorted(controls, key=len, reverse=True)
        self._beginnings = {text[:end] for text in controls for end in range(1, len(text))}
        self._longest = max(map(len, self._beginnings), default=0)

    def guard(self, untrusted: str) -> str:
        """The same letters with fences where needed; honest texts come back as they are.

        Fences that ``untrusted`` brings along become U+FFFD.
        """
        text = untrusted.replace(FENCE, "\ufffd")
        for control in self._controls:
            while control in text:  # again, for occurrences that overlap
                text = text.replace(control, f"{control[0]}{FENCE}{control[1:]}")
        ends = range(1, min(self._longest, len(text)) + 1)
        return text + FENCE if any(text[-end:] in self._beginnings for end in ends) else text
