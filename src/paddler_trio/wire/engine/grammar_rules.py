"""A grammar as an engine follows it: arrays, because an engine has no time to read one."""

from __future__ import annotations

import attrs


def _size(value: bytes) -> str:
    return f"{len(value)} B"


@attrs.frozen(cache_hash=True)
class GrammarRules:
    """The places of a grammar, those of an alternative one after the other, and its rules.

    Numbers are int32 of this machine, in bytes. A place is of a kind: the end of an alternative, a
    rule, a set of characters or a whole token, and its value is the number of that.

    Attributes:
      kinds, values: of each place, a kind in one byte.
      root: the number of the rule that a text begins with.
      are_empty: of each rule, 1 in one byte if the empty text fits it.
      ranks: of each rule, in an order in which a rule comes before all that it may begin with.
      begin_starts: of each rule, where its part of ``begins`` starts, and where the last one ends.
      begins: places at which rules can begin.
      set_starts: of each set, where its part of the ranges starts, and where the last one ends.
      set_firsts, set_lasts: ranges of code points, inclusive, ascending within a set.
      tokens: as GBNF writes them.
    """

    kinds: bytes = attrs.field(repr=_size)
    values: bytes = attrs.field(repr=_size)
    root: int
    are_empty: bytes = attrs.field(repr=_size)
    ranks: bytes = attrs.field(repr=_size)
    begin_starts: bytes = attrs.field(repr=_size)
    begins: bytes = attrs.field(repr=_size)
    set_starts: bytes = attrs.field(repr=_size)
    set_firsts: bytes = attrs.field(repr=_size)
    set_lasts: bytes = attrs.field(repr=_size)
    tokens: tuple[str, ...]
