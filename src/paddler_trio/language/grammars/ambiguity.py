"""Grammars in which a text can be read in 2^n ways.

To see whether a token fits, llama.cpp follows every way of reading its letters, one after the
other. With ``([a-z]+ " "?)*`` a token of thirty letters has a billion of them, and the engine would
stand still for everybody. What is still to be read after each letter it keeps for every way, and
compares with all others. So texts are tried here, and their readings counted the way llama.cpp
would walk them: from every rule runs of one letter, because long tokens are mostly such runs, and
from the root a text that takes at each place the letter which leaves most to be followed.

A trial is bounded; a grammar too large to be tried to the end is let pass. The engine has limits of
its own for what passes and is expensive all the same (``engine/constraint.py``,
``engine/slow_sampling.py``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import attrs

from paddler_trio.language.grammars.inspection import Inspection, Ways, takes_characters
from paddler_trio.language.grammars.writer import GrammarError

RUN_CHARS = 32
MAX_READINGS = 50_000
_MAX_WORK = 60_000
TEXT_CHARS = 64
MAX_STEP_WORK = 50_000_000
"""Comparisons of llama.cpp for one letter: as many as 10,000 alternatives that begin alike take."""
_MAX_TEXT_WORK = 300_000
_TRIED_CHARACTERS = 3
_MAX_CHARACTERS = 20_000
_PROBES = ' \n\tax0=-*#_."'
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_CHARACTER = re.compile(
    r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL
)


def refuse_ambiguous(inspection: Inspection, root: str) -> None:
    """GrammarError for a grammar in which a run of letters, or the text that leaves most to be
    followed, has too many readings."""
    texts = _Readings(inspection.rules, _MAX_TEXT_WORK)
    for rule in [root, *(name for name in inspection.rules if not name.startswith("("))]:
        if (text := texts.too_dear_text(rule)) is not None:
            shown = text[-RUN_CHARS:].encode("unicode_escape").decode()
            place = f"after '{shown}' in the rule {rule!r}"
            raise GrammarError(f"the grammar goes on in too many ways {place}: leave fewer")
        if texts.is_spent:
            break
    readings = _Readings(inspection.rules, _MAX_WORK)
    if readings.is_too_large:
        return
    for rule in sorted(inspection.rules, key=lambda name: name.startswith("(")):
        for character in _PROBES:
            if readings.of_run(rule, character) > MAX_READINGS:
                shown = character.encode("unicode_escape").decode()
                place = "in a group" if rule.startswith("(") else f"in the rule {rule!r}"
                message = f"the grammar can read {RUN_CHARS} times '{shown}' {place} in more than "
                raise GrammarError(f"{message}{MAX_READINGS} ways: leave only one")
            if readings.is_spent:
                return


@attrs.frozen(eq=False)
class _Character:
    """One letter of a text or one class of letters: which of the probes it takes, which letters it
    takes at all, and one of them that others may take as well."""

    takes: frozenset[str]
    fits: Callable[[str], bool]
    sample: str


class _Readings:
    """Counts readings. A place is what is still to be read: 0 is nothing, others are numbered."""

    def __init__(self, rules: Mapping[str, Ways], max_work: int) -> None:
        self.work = 0
        self._max_work = max_work
        self._ways: dict[str, list[tuple[str | _Character, ...]]] = {}
        num_characters = 0
        for name, ways in rules.items():
            self._ways[name] = [tuple(_parts(way)) for way in ways]
            num_characters += sum(map(len, self._ways[name]))
        self.is_too_large = num_characters > _MAX_CHARACTERS
        self._places: list[tuple[tuple[str | _Character, ...], int, int]] = [((), 0, 0)]
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._ready: dict[int, tuple[int, ...]] = {}

    @property
    def is_spent(self) -> bool:
        """There was no time to try all."""
        return self.work > self._max_work

    def too_dear_text(self, rule: str) -> str | None:
        """A text that ``rule`` can begin with and whose last letter costs too much; None if none
        was found. At each place it goes on with the letter that leaves most places."""
        text = ""
        places = set(self._characters_after(self._place((rule,), 0, 0)))
        while places and len(text) < TEXT_CHARS and not self.is_spent:
            best: tuple[str, set[int]] = ("", set())
            for character in self._likely_characters(places):
                following = self._step(places, character)
                if following is None:
                    return text + character
                if len(following) > len(best[1]):
                    best = character, following
            text, places = text + best[0], best[1]
        return None

    def _likely_characters(self, places: set[int]) -> list[str]:
        """Letters that most of these places name, the most frequent first."""
        counts = Counter(self._character_at(place).sample for place in places if place)
        return [character for character, _ in counts.most_common(_TRIED_CHARACTERS) if character]

    def _step(self, places: set[int], character: str) -> set[int] | None:
        """The places after a letter; None if it would take llama.cpp too many comparisons."""
        following: set[int] = set()
        num_found = 0
        for place in places:
            self.work += 1
            if place == 0 or not self._character_at(place).fits(character):
                continue
            parts, at, rest = self._places[place]
            found = self._characters_after(self._place(parts, at + 1, rest))
            self.work += len(found)
            num_found += len(found)
            following.update(found)
            if num_found * len(following) > 2 * MAX_STEP_WORK:
                return None
            if self.is_spent:
                break
        return following

    def _character_at(self, place: int) -> _Character:
        parts, at, _ = self._places[place]
        part = parts[at]
        assert isinstance(part, _Character), "only places before a letter are kept"
        return part

    def of_run(self, rule: str, character: str) -> int:
        """In how many ways ``rule`` can begin with so many of one letter."""
        counts = dict.fromkeys(self._characters_after(self._place((rule,), 0, 0)), 1)
        for _ in range(RUN_CHARS):
            following: dict[int, int] = {}
            for place, count in counts.items():
                if place == 0:
                    continue
                if character not in self._character_at(place).takes:
                    continue
                parts, at, rest = self._places[place]
                for there in self._characters_after(self._place(parts, at + 1, rest)):
                    following[there] = following.get(there, 0) + count
                    self.work += 1
            counts = following
            total = sum(counts.values())
            if total > MAX_READINGS or not counts or self.is_spent:
                return total
        return sum(counts.values())

    def _place(self, parts: tuple[str | _Character, ...], at: int, rest: int) -> int:
        if at == len(parts):
            return rest  # nothing of it is left: what comes after it is next
        key = (id(parts), at, rest)
        if key not in self._numbers:
            self._numbers[key] = len(self._places)
            self._places.append((parts, at, rest))  # keeps the parts, and so their id
        return self._numbers[key]

    def _characters_after(self, place: int) -> tuple[int, ...]:
        """The places before a letter, or the end, that this one leads to without reading."""
        if place in self._ready:
            return self._ready[place]
        found: list[int] = []
        seen = {place}
        waiting = [place]
        while waiting:
            here = waiting.pop()
            self.work += 1
            parts, at, rest = self._places[here]
            if here == 0 or isinstance(parts[at], _Character):
                found.append(here)
                continue
            if self.is_spent:
                break
            after = self._place(parts, at + 1, rest)
            name = parts[at]
            assert isinstance(name, str), "it is no letter"
            for way in self._ways[name]:
                there = self._place(way, 0, after)
                if there not in seen:
                    seen.add(there)
                    waiting.append(there)
        self._ready[place] = tuple(found)
        return self._ready[place]


def _parts(way: list[str]) -> Iterator[str | _Character]:
    for item in way:
        if not takes_characters(item):
            yield item
        elif item[0] == '"':
            for character in _characters(item[1:-1]):
                yield _Character(frozenset({character}), character.__eq__, character)
        elif item[0] == "[":
            characters = _class_of(item)
            takes = frozenset(filter(characters, _PROBES))
            yield _Character(takes, characters, characters.sample)
        elif item[0] == ".":
            yield _Character(frozenset(_PROBES), lambda _: True, _PROBES[0])
        else:
            yield _Character(frozenset(), lambda _: False, "")


def _characters(text: str) -> Iterator[str]:
    for two, four, eight, escaped, plain in _CHARACTER.findall(text):
        if digits := two or four or eight:
            yield chr(min(int(digits, 16), 0x10FFFF))
        else:
            yield _ESCAPES.get(escaped, escaped) if escaped else plain


def _class_of(item: str) -> _Class:
    inside = item[1:-1]
    is_negated = inside.startswith("^")
    spans: list[tuple[str, str]] = []
    pieces = [match.group() for match in _CHARACTER.finditer(inside[is_negated:])]
    characters = [next(iter(_characters(piece))) for piece in pieces]
    at = 0
    while at < len(characters):
        if at + 2 < len(characters) and pieces[at + 1] == "-":
            spans.append((characters[at], characters[at + 2]))
            at += 3
        else:
            spans.append((characters[at], characters[at]))
            at += 1
    return _Class(tuple(spans), is_negated)


@attrs.frozen
class _Class:
    spans: tuple[tuple[str, str], ...]
    is_negated: bool

    @property
    def sample(self) -> str:
        """One of its letters; empty if none was found."""
        named = [first for first, _ in self.spans]
        return next(filter(self, [*named, *_PROBES]), "")

    def __call__(self, character: str) -> bool:
        return any(first <= character <= last for first, last in self.spans) is not self.is_negated
