"""Automata over characters: built from patterns, texts to avoid and choices, written down as GBNF.

A deterministic automaton reads every text in one way, so the grammar written from it never has more
than one stack, whatever the pattern: ``(a|a)*`` or ``(a*)*`` cost nothing. It can
also be cut with another one, and states that lead nowhere are found and left out, so a model is
never let into a corner it cannot get out of.

Source:
  Subset construction: Rabin and Scott (1959). Texts to avoid: Aho and Corasick (1975).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import attrs

from paddler_trio.language.grammars.gbnf_writer import (
    ANY_CHARACTER,
    GrammarError,
    GrammarWriter,
    Ranges,
    Work,
    both,
    but,
    character_class,
    literal,
    ranges_of,
)

MAX_STATES = 4000
_MAX_STEPS = 120_000

Edges: TypeAlias = tuple[tuple[Ranges, int], ...]
"""Where each set of characters leads; the sets of one state have no character in common."""


@attrs.frozen
class Automaton:
    """Deterministic; state 0 is the first. Every state leads to an accepting one."""

    edges: tuple[Edges, ...]
    accepting: frozenset[int]

    def accepts(self, text: str) -> bool:
        """Whether the whole text is read, ending in an accepting state."""
        state = 0
        for code in map(ord, text):
            for characters, target in self.edges[state]:
                if any(first <= code <= last for first, last in characters):
                    state = target
                    break
            else:
                return False
        return state in self.accepting


@attrs.define
class Net:
    """A nondeterministic automaton under construction; state 0 is the first."""

    leads: list[list[tuple[Ranges, int]]] = attrs.field(factory=lambda: [[]])
    skips: list[list[int]] = attrs.field(factory=lambda: [[]])

    def state(self) -> int:
        """A new state; GrammarError where there are too many."""
        if len(self.leads) >= 8 * MAX_STATES:
            raise GrammarError(f"the pattern needs more than {8 * MAX_STATES} states")
        self.leads.append([])
        self.skips.append([])
        return len(self.leads) - 1

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """These states and all that follow without a character."""
        found = set(states)
        waiting = list(found)
        while waiting:
            for state in self.skips[waiting.pop()]:
                if state not in found:
                    found.add(state)
                    waiting.append(state)
        return frozenset(found)

    def determined(self, final: int, work: Work) -> Automaton:
        """The same language, read in one way only.

        Raises:
          GrammarError: more than ``MAX_STATES`` states, too much work, or no text at all.
        """
        first = self.closure([0])
        numbers = {first: 0}
        waiting = [first]
        edges: list[list[tuple[Ranges, int]]] = []
        closures: dict[frozenset[int], frozenset[int]] = {}
        steps = 0
        while waiting:
            following: list[frozenset[int]] = []
            for here in waiting:
                out: dict[int, list[tuple[int, int]]] = {}
                leads = [lead for state in here for lead in self.leads[state]]
                steps += len(here) + len(leads)
                # Looked at before they are cut: every range costs a step or more below.
                _check_steps(steps + sum(len(ranges) for ranges, _ in leads))
                for span, targets in _spans(leads):
                    steps += 4 + len(targets)
                    _check_steps(steps)
                    there = closures.get(targets)
                    if there is None:
                        there = closures[targets] = self.closure(targets)
                        steps += len(there)
                    if there not in numbers:
                        numbers[there] = len(numbers)
                        following.append(there)
                    out.setdefault(numbers[there], []).append(span)
                edges.append([(ranges_of(spans), target) for target, spans in out.items()])
                _check_steps(steps, len(numbers))
            waiting = following
        work.spend(steps + 4 * len(self.leads))
        return trimmed(edges, {number for states, number in numbers.items() if final in states})


def _check_steps(steps: int, num_states: int = 0) -> None:
    if num_states > MAX_STATES or steps > _MAX_STEPS:
        raise GrammarError(f"the pattern needs more than {MAX_STATES} states or {_MAX_STEPS} steps")


def trimmed(edges: Sequence[Iterable[tuple[Ranges, int]]], accepting: set[int]) -> Automaton:
    """Without states that are never reached or never lead to an end.

    Raises:
      GrammarError: nothing is left.
    """
    back: list[list[int]] = [[] for _ in edges]
    for state, out in enumerate(edges):
        for _, target in out:
            back[target].append(state)
    alive = set(accepting)
    waiting = list(alive)
    while waiting:
        for state in back[waiting.pop()]:
            if state not in alive:
                alive.add(state)
                waiting.append(state)
    if 0 not in alive:
        raise GrammarError("no text can match")
    order = [0]
    numbers = {0: 0}
    kept: list[Edges] = []
    for state in order:
        out = []
        for characters, target in edges[state]:
            if target in alive and characters:
                if target not in numbers:
                    numbers[target] = len(numbers)
                    order.append(target)
                out.append((characters, numbers[target]))
        kept.append(tuple(out))
    return Automaton(tuple(kept), frozenset(numbers[s] for s in accepting if s in numbers))


def _spans(leads: list[tuple[Ranges, int]]) -> Iterable[tuple[tuple[int, int], frozenset[int]]]:
    """The characters that lead somewhere, cut so that all of one span lead to the same states."""
    starts: dict[int, list[int]] = {}
    stops: dict[int, list[int]] = {}
    for ranges, target in leads:
        for first, last in ranges:
            starts.setdefault(first, []).append(target)
            stops.setdefault(last + 1, []).append(target)
    active: Counter[int] = Counter()
    begin = 0
    for at in sorted({*starts, *stops}):
        if active:
            yield (begin, at - 1), frozenset(active)
        for target in stops.get(at, ()):
            active[target] -= 1
            if not active[target]:
                del active[target]
        active.update(starts.get(at, ()))
        begin = at


def intersection(one: Automaton, other: Automaton, work: Work) -> Automaton:
    """Texts that both accept; GrammarError if there is none, or too many states or steps."""
    numbers = {(0, 0): 0}
    order = [(0, 0)]
    edges: list[list[tuple[Ranges, int]]] = []
    for a, b in order:
        out = []
        spans = sum(len(ranges) for ranges, _ in other.edges[b])
        for ranges_a, to_a in one.edges[a]:
            num_others = len(other.edges[b])
            work.spend(num_others + (spans + num_others * len(ranges_a)) // 8)
            for ranges_b, to_b in other.edges[b]:
                characters = both(ranges_a, ranges_b)
                if not characters:
                    continue
                if (to_a, to_b) not in numbers:
                    numbers[to_a, to_b] = len(numbers)
                    order.append((to_a, to_b))
                out.append((characters, numbers[to_a, to_b]))
        edges.append(out)
        if len(order) > MAX_STATES:
            raise GrammarError(f"pattern and lengths need more than {MAX_STATES} states")
    accepting = {
        number for (a, b), number in numbers.items() if a in one.accepting and b in other.accepting
    }
    return trimmed(edges, accepting)


def lengths(least: int, most: int | None) -> Automaton:
    """Texts of ``least`` to ``most`` characters."""
    if most is not None and most < least:
        raise GrammarError("no text can match")
    count = max(least, most or 0)
    if count >= MAX_STATES:
        raise GrammarError(f"{count} characters with a pattern, the limit is {MAX_STATES - 1}")
    edges = [((ANY_CHARACTER, state + 1),) for state in range(count)]
    edges.append(((ANY_CHARACTER, count),) if most is None else ())  # type: ignore[arg-type]  # tuples of any length
    accepting = {state for state in range(count + 1) if state >= least}
    return trimmed(edges, accepting)


Trie: TypeAlias = list[dict[str, int]]
"""Of each node, the child by character; node 0 is the root."""


def _trie(texts: Sequence[str]) -> tuple[Trie, set[int]]:
    """The trie of these texts, and the nodes at which one of them ends."""
    children: Trie = [{}]
    ends = set()
    for text in texts:
        node = 0
        for character in text:
            if character not in children[node]:
                children[node][character] = len(children)
                children.append({})
            node = children[node][character]
        ends.add(node)
    return children, ends


def _edges(leads: Mapping[str, int]) -> list[tuple[Ranges, int]]:
    return [(((ord(character), ord(character)),), target) for character, target in leads.items()]


def _others(leads: Iterable[str]) -> Ranges:
    return but(ranges_of((ord(character), ord(character)) for character in leads))


def texts_without(avoided: Sequence[str]) -> Automaton:
    """Every text that contains none of ``avoided``, which are not empty."""
    children, ends = _trie(avoided)
    leads: Trie = [{} for _ in children]
    fallback = [0] * len(children)
    order = [0]
    for node in order:
        inherited = leads[fallback[node]] if node else {}
        leads[node] = {**inherited, **children[node]}
        for character, child in children[node].items():
            fallback[child] = inherited.get(character, 0)
            if fallback[child] in ends:
                ends.add(child)
            order.append(child)
    edges: list[list[tuple[Ranges, int]]] = []
    for lead in leads:
        targets: dict[int, list[tuple[int, int]]] = {}
        for character, target in lead.items():
            targets.setdefault(target, []).append((ord(character), ord(character)))
        spans = [(ranges_of(characters), target) for target, characters in targets.items()]
        edges.append([(r, t) for r, t in [*spans, (_others(lead), 0)] if t not in ends])
    return trimmed(edges, set(range(len(children))) - ends)


def one_of(choices: Sequence[str]) -> Automaton:
    """Exactly these texts."""
    children, ends = _trie(choices)
    return trimmed([_edges(leads) for leads in children], ends)


def texts_but(names: Sequence[str]) -> Automaton:
    """Every text but these."""
    children, ends = _trie(names)
    other = len(children)
    edges = [[*_edges(leads), (_others(leads), other)] for leads in children]
    edges.append([(ANY_CHARACTER, other)])
    return trimmed(edges, set(range(other + 1)) - ends)


# ------------------------------------------------------------------------------ as GBNF

_JSON_RAW: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF))
_CONTROL: Ranges = ((0x01, 0x1F),)
_SHORT_ESCAPES = {
    '"': r'"\\\""',
    "\\": r'"\\\\"',
    "\b": r'"\\b"',
    "\f": r'"\\f"',
    "\n": r'"\\n"',
    "\r": r'"\\r"',
    "\t": r'"\\t"',
}
ANY_CONTROL_ESCAPE = r'"\\u00" ("0" [1-9a-fA-F] | "1" [0-9a-fA-F])'


@lru_cache(maxsize=1024)  # an automaton of thousands of edges has a few sets of characters
def character_ways(ranges: Ranges, *, in_json: bool) -> tuple[str, ...]:
    """GBNF for the ways to write one of these characters: as it is, and in JSON strings escaped."""
    if not in_json:
        return (character_class(ranges),)
    ways = []
    if raw := both(ranges, _JSON_RAW):
        ways.append(character_class(raw))
    ways += [
        written
        for character, written in _SHORT_ESCAPES.items()
        if both(ranges, ((ord(character), ord(character)),))
    ]
    control = both(ranges, _CONTROL)
    if control == _CONTROL:
        ways.append(ANY_CONTROL_ESCAPE)
    else:
        for first, last in control:
            ways += [
                f'"\\\\u{code:04x}"'
                for code in range(first, last + 1)
                if chr(code) not in _SHORT_ESCAPES
            ]
    return tuple(ways)


def write(
    automaton: Automaton, writer: GrammarWriter, *, in_json: bool, hint: str, escape: str = ""
) -> str:
    """The name of a rule for the texts of ``automaton``.

    Args:
      in_json: written as the inside of a JSON string, quotes not included.
      hint: how the rules are called.
      escape: in a JSON string, a further way to write any character that is not followed by the
        automaton: after it the first state is next. Only right where characters written that way
        do not count, as with texts to avoid.

    Raises:
      GrammarError: too large.
    """
    entries = Counter(target for out in automaton.edges for _, target in out)
    names: dict[int, str] = {0: writer.reserve(hint)}
    order = [0]

    def name_of(state: int) -> str:
        if state not in names:
            names[state] = writer.reserve(hint)
            order.append(state)
        return names[state]

    def rest_of(state: int) -> str:
        """What follows once this state is reached; single characters in a row become one text."""
        run = ""
        while (
            state
            and entries[state] == 1
            and state not in automaton.accepting
            and len(automaton.edges[state]) == 1
            and not escape
        ):
            characters, target = automaton.edges[state][0]
            character = _only(characters)
            if character is None or (in_json and (character in '"\\' or ord(character) < 0x20)):
                break
            run, state = run + character, target
        words = [literal(run)] if run else []
        if automaton.edges[state] or escape:
            words.append(name_of(state))
        return " ".join(words)

    for state in order:
        ways = []
        for characters, target in automaton.edges[state]:
            one = character_ways(characters, in_json=in_json)
            if one:  # written once: thousands of edges have a few sets of characters
                begin = one[0] if len(one) == 1 else writer.rule(" | ".join(one), "character")
                ways.append(f"{begin} {rest_of(target)}".rstrip())
        if escape:
            ways.append(f"{escape} {names[0]}")
        if state in automaton.accepting:
            ways.append('""')  # an empty last alternative would take in the next rule
        writer.define(names[state], " | ".join(ways))
    return names[0]


def _only(characters: Ranges) -> str | None:
    (first, last), *others = characters
    return chr(first) if first == last and not others else None
