"""The small part of Go's templates in which people write a prompt of their own: texts in places,
and choices by whether a text is there.

Each text is shown once at most, so that what comes out is no longer than the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from paddler_trio.balancer.apis.api_errors import ApiError, invalid

END: Final = ".Response"
"""The beginning of the answer: nothing behind it is part of the prompt."""
MAX_DEPTH: Final = 32


@attrs.define
class _Choice:
    """An ``if`` that is open: whether its texts count now, and whether any of its branches did."""

    counts: bool
    has_counted: bool


@attrs.define
class _Filling:
    texts: Mapping[str, str]
    pieces: list[str] = attrs.field(factory=list)
    choices: list[_Choice] = attrs.field(factory=list)
    shown: set[str] = attrs.field(factory=set)

    @property
    def counts(self) -> bool:
        return all(choice.counts for choice in self.choices)

    def text(self, text: str) -> None:
        if self.counts:
            self.pieces.append(text)

    def act(self, action: str) -> bool:
        """Do what stands between two pairs of braces; return whether the prompt ends here."""
        words = action.split()
        match words:
            case ["if", *condition]:
                holds = self._holds(condition, action)
                if len(self.choices) == MAX_DEPTH:
                    raise _unread(action, f"at most {MAX_DEPTH} stand in one another")
                self.choices.append(_Choice(holds, holds))
            case ["else", "if", *condition] if self.choices:
                choice = self.choices[-1]
                holds = self._holds(condition, action)
                choice.counts = holds and not choice.has_counted
                choice.has_counted = choice.has_counted or holds
            case ["else"] if self.choices:
                choice = self.choices[-1]
                choice.counts, choice.has_counted = not choice.has_counted, True
            case ["end"] if self.choices:
                self.choices.pop()
            case [name] if name == END:
                return self.counts
            case [name] if name in self.texts:
                self._show(name, action)
            case _ if not action.startswith("/*"):
                raise _unread(action, f"known are if, else, end, {END}, {', '.join(self.texts)}")
        return False

    def _show(self, name: str, action: str) -> None:
        if not self.counts:
            return
        if name in self.shown:
            raise _unread(action, "each text stands in a prompt once")
        self.shown.add(name)
        self.pieces.append(self.texts[name])

    def _holds(self, condition: list[str], action: str) -> bool:
        match condition:
            case [name] if name in self.texts:
                return bool(self.texts[name])
            case ["not", name] if name in self.texts:
                return not self.texts[name]
            case [name] if name == END:
                return False
        raise _unread(action, f"a condition is one of {', '.join(self.texts)}, or not one of them")


def filled(template: str, texts: Mapping[str, str]) -> str:
    """Return ``template`` with ``texts`` in their places, up to where the answer begins.

    Errors:
      ApiError: 400 for anything else that Go's templates have.
    """
    filling = _Filling(texts)
    place, trims = 0, False
    while True:
        begin = template.find("{{", place)
        text = template[place:] if begin < 0 else template[place:begin]
        text = text.lstrip() if trims else text
        if begin < 0:
            filling.text(text)
            break
        end = template.find("}}", begin + 2)
        if end < 0:
            raise _unread(template[begin + 2 :], "it is not closed")
        action = template[begin + 2 : end]
        if action.startswith("-"):
            text, action = text.rstrip(), action[1:]
        trims = action.endswith("-")
        filling.text(text)
        if filling.act(action.removesuffix("-").strip()):
            return "".join(filling.pieces)
        place = end + 2
    if filling.choices:
        raise invalid("template ends inside an if", "template")
    return "".join(filling.pieces)


def _unread(action: str, why: str) -> ApiError:
    return invalid(f"template: {{{{ {action[:80]} }}}} is not read: {why}", "template")
