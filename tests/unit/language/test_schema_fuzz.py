"""A slice of the schema fuzzer; every grammar that it makes has to be one for llama.cpp."""

from __future__ import annotations

import sys
from pathlib import Path

from grammar_engine import check_gbnf

from paddler_trio.language.vocabulary import Vocabulary

sys.path.append(str(Path(__file__).parents[2] / "fuzz"))

import pytest
from fuzz_schemas import fuzz

pytestmark = pytest.mark.thorough


def test_random_schemas_become_grammars_or_are_refused(vocabulary: Vocabulary) -> None:
    def judge(grammar: str, root: str) -> None:
        assert check_gbnf(vocabulary, grammar, root), grammar

    outcomes = fuzz(350, seed=5, judge=judge)
    assert outcomes.total() == 350
    for kind in ("schema", "pattern", "grammar", "choice", "tools"):
        assert outcomes[f"{kind}: made"] > 0
        assert outcomes[f"{kind}: refused"] > 0
