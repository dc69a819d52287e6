"""Compiles GBNF into what an engine follows, in a preparation process: reading takes long."""

from __future__ import annotations

from array import array
from functools import lru_cache

import attrs

from paddler_trio.language.grammars.character_classes import no_vocabulary
from paddler_trio.language.grammars.gbnf_reader import (
    Characters,
    Item,
    Rules,
    TokenText,
    components,
    empty_rules,
    left_factored,
    leftmost,
    read_gbnf,
)
from paddler_trio.language.grammars.gbnf_writer import GrammarError
from paddler_trio.language.grammars.pushdown_automaton import (
    PlaceKind,
    PushdownAutomaton,
    TooManyStacksError,
)
from paddler_trio.wire.engine.engine_pipe import Grammar, Thoughts
from paddler_trio.wire.engine.grammar_rules import GrammarRules


@attrs.frozen
class AnswerGrammar:
    """GBNF that binds an answer; further fields as in :class:`Grammar`."""

    gbnf: str
    root: str
    trigger_tokens: list[int] = attrs.field(factory=list)
    trigger_patterns: list[str] = attrs.field(factory=list)
    thoughts: Thoughts | None = None

    def compiled(self) -> Grammar:
        """Raises GrammarError."""
        return Grammar(
            compile_gbnf(self.gbnf, self.root),
            self.trigger_tokens,
            self.trigger_patterns,
            self.thoughts,
        )


@lru_cache(maxsize=1)  # a client's grammar is inspected, then sent
def compile_gbnf(grammar: str, root: str) -> GrammarRules:
    """The rules of a grammar for an engine.

    Raises:
      GrammarError: it cannot be read, has no rule ``root``, or begins in too many ways.
    """
    rules = read_gbnf(grammar)
    if root not in rules or root.startswith("("):
        raise GrammarError(f"the grammar has no rule {root!r}")
    compiled = _Compilation(left_factored(rules)).rules_from(root)
    try:
        PushdownAutomaton(compiled, no_vocabulary())
    except TooManyStacksError as error:
        raise GrammarError(str(error)) from error
    return compiled


class _Compilation:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._numbers = {name: number for number, name in enumerate(rules)}
        self._kinds = bytearray([PlaceKind.END])
        self._values = array("i", [0])
        self._sets: dict[Characters, int] = {}
        self._tokens: list[TokenText] = []

    def rules_from(self, root: str) -> GrammarRules:
        empty = empty_rules(self._rules)
        begin_starts, begins = array("i", [0]), array("i")
        for ways in self._rules.values():
            for way in ways:
                begins_here = True
                for item in way:
                    if begins_here:
                        begins.append(len(self._kinds))
                        begins_here = isinstance(item, str) and item in empty
                    self._add_place(item)
                self._kinds.append(PlaceKind.END)
                self._values.append(0)
            begin_starts.append(len(begins))
        set_starts, firsts, lasts = array("i", [0]), array("i"), array("i")
        for characters in self._sets:
            for first, last in characters.spans:
                firsts.append(first)
                lasts.append(last)
            set_starts.append(len(firsts))
        return GrammarRules(
            bytes(self._kinds),
            self._values.tobytes(),
            self._numbers[root],
            bytes(name in empty for name in self._rules),
            self._ranks(empty).tobytes(),
            begin_starts.tobytes(),
            begins.tobytes(),
            set_starts.tobytes(),
            firsts.tobytes(),
            lasts.tobytes(),
            tuple("!" * token.is_negated + token.text for token in self._tokens),
        )

    def _ranks(self, empty: set[str]) -> array[int]:
        below = components(
            {
                name: [item for item, _ in leftmost(ways, empty)]
                for name, ways in self._rules.items()
            }
        )
        ranks = array("i", bytes(4 * len(below)))
        for rank, name in enumerate(reversed(below)):
            ranks[self._numbers[name]] = rank
        return ranks

    def _add_place(self, item: Item) -> None:
        if isinstance(item, str):
            kind, value = PlaceKind.RULE, self._numbers[item]
        elif isinstance(item, Characters):
            kind, value = PlaceKind.CHARACTERS, self._sets.setdefault(item, len(self._sets))
        else:
            kind, value = PlaceKind.TOKEN, len(self._tokens)
            self._tokens.append(item)
        self._kinds.append(kind)
        self._values.append(value)
