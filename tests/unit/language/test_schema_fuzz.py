"""A slice of the schema fuzzer; every grammar that it makes has to be one for the engine."""

from __future__ import annotations

import sys
from pathlib import Path

from grammar_engine import llama_of

from paddler_trio.language.grammars.conversion import AnswerGrammar
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.sampling.constraint import Constraint

sys.path.append(str(Path(__file__).parents[2] / "fuzz"))

import pytest
from fuzz_schemas import fuzz

pytestmark = pytest.mark.thorough


def test_random_schemas_become_grammars_or_are_refused(vocabulary: Vocabulary) -> None:
    def judge(grammar: AnswerGrammar) -> None:
        Constraint.build(llama_of(vocabulary), grammar.compiled())

    outcomes = fuzz(350, seed=5, judge=judge)
    assert outcomes.total() == 350
    for kind in ("schema", "pattern", "grammar", "choice", "tools"):
        assert outcomes[f"{kind}: made"] > 0
        assert outcomes[f"{kind}: refused"] > 0 or kind == "tools"
