"""Grammars looked at before the engine is given them: what would never end or fill its memory.

* Counts become copies: ``"a long text"{2000}`` is that text 2000 times in memory.
* A rule that begins with itself, or may do so behind rules that are empty, has texts that can
  never be written; llama.cpp refuses such grammars, so they are refused here.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from paddler_trio.language.grammars.gbnf_reader import (
    Rules,
    bottom_up,
    closed_rules,
    empty_rules,
    leftmost,
    read_gbnf,
)
from paddler_trio.language.grammars.gbnf_writer import GrammarError


class LeftRecursionError(GrammarError):
    """A rule that begins with itself."""


@attrs.frozen
class Inspection:
    """A grammar that the engine can be given; ``rules`` by their names, groups included."""

    rules: Rules

    def endless(self, root: str) -> list[str]:
        """Rules that ``root`` leads to and no finite text fits."""
        reached = {root}
        waiting = [root]
        while waiting:
            for item in (item for way in self.rules[waiting.pop()] for item in way):
                if isinstance(item, str) and item not in reached:
                    reached.add(item)
                    waiting.append(item)
        finite = closed_rules(self.rules, is_given=lambda item: not isinstance(item, str))
        return sorted(reached - finite)


def inspect(grammar: str) -> Inspection:
    """Take a grammar apart and look at it.

    Raises:
      GrammarError: it cannot be read, or is refused; the text gives the reason.
    """
    rules = read_gbnf(grammar)
    plainly_empty = {name for name, ways in rules.items() if [] in ways}
    edges = {name: list(leftmost(ways, plainly_empty)) for name, ways in rules.items()}
    _, has_cycle = bottom_up({name: [item for item, _ in out] for name, out in edges.items()})
    if has_cycle:
        raise LeftRecursionError("the grammar has a rule that begins with itself (left recursion)")
    empty = empty_rules(rules)
    edges = {name: list(leftmost(ways, empty)) for name, ways in rules.items()}
    if _grows(edges):
        raise LeftRecursionError("the grammar has a rule that may begin with itself")
    return Inspection(rules)


def _grows(edges: Mapping[str, list[tuple[str, bool]]]) -> bool:
    """Whether a rule comes back to itself with something left to be read behind it."""
    component = _components({name: [item for item, _ in out] for name, out in edges.items()})
    return any(
        follows and component[name] == component[item]
        for name, out in edges.items()
        for item, follows in out
    )


def _components(edges: Mapping[str, list[str]]) -> dict[str, int]:
    """Which names lead to each other: Tarjan's strongly connected components, without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    component: dict[str, int] = {}
    waiting: list[str] = []
    for start in edges:
        if start in index:
            continue
        index[start] = low[start] = len(index)
        waiting.append(start)
        path = [(start, iter(edges[start]))]
        while path:
            name, out = path[-1]
            following = next(out, None)
            if following is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[name])
                if low[name] == index[name]:
                    while True:
                        member = waiting.pop()
                        component[member] = index[name]
                        if member == name:
                            break
            elif following not in index:
                index[following] = low[following] = len(index)
                waiting.append(following)
                path.append((following, iter(edges[following])))
            elif following not in component:
                low[name] = min(low[name], index[following])
    return component
