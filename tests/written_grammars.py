"""Grammars as answers are bound to them, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from paddler_trio.language.grammars.conversion import AnswerGrammar
from paddler_trio.language.grammars.gbnf import write_gbnf
from paddler_trio.language.grammars.lark import LarkWriter
from paddler_trio.processes.engine.sampling.constraint import Constraint
from paddler_trio.wire.engine.engine_pipe import Grammar


def written(write: Callable[[LarkWriter], str]) -> AnswerGrammar:
    """The grammar of which ``write`` writes the rules."""
    writer = LarkWriter()
    return AnswerGrammar(writer.text(write(writer)))


def gbnf(
    text: str, root: str = "root", *, end_tokens: Sequence[int] = (), **triggers: object
) -> Grammar:
    """A grammar for the engine; it may name tokens by their numbers."""
    grammar = written(lambda writer: write_gbnf(text, root, writer, lambda _: None, end_tokens))
    return attrs.evolve(grammar.compiled(), **triggers)  # type: ignore[arg-type]


def takes(constraint: Constraint, token: int) -> bool:
    """Whether the token may come now; it is not taken."""
    return attrs.evolve(constraint, matcher=constraint._matcher.deep_copy()).advance(token)
