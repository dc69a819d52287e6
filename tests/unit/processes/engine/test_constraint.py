"""Which tokens a grammar lets come, compared with llama.cpp's sampler, and what that may cost."""

from __future__ import annotations

import ctypes
import json
import random
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest

from paddler_trio.language.grammars.gbnf_compilation import AnswerGrammar, compile_gbnf
from paddler_trio.language.grammars.gbnf_conversion import (
    any_json_to_gbnf,
    choice_to_gbnf,
    inspect_gbnf,
    json_schema_to_gbnf,
)
from paddler_trio.language.grammars.pushdown_automaton import PushdownAutomaton
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.processes.engine.sampling.candidates import candidates_of, token_rows
from paddler_trio.processes.engine.sampling.constraint import (
    Constraint,
    GrammarInvalidError,
    GrammarRejectedError,
    _State,
    _TokenGrammar,
)
from paddler_trio.processes.engine.sampling.token_trie import TokenTrie, read_text
from paddler_trio.wire.engine.engine_pipe import Thoughts

NESTED = {
    "$ref": "#/$defs/n",
    "$defs": {
        "n": {
            "anyOf": [
                {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": n, "maxItems": n}
                for n in (1, 2)
            ]
            + [{"type": "integer"}]
        }
    },
}
"""A list may have one item or two: after n brackets llama.cpp follows 2^n readings."""


@pytest.fixture(scope="module")
def llama() -> Iterator[Llama]:
    vocabulary = Vocabulary.load(BUNDLED_MODEL)
    yield Llama(vocabulary._model)
    vocabulary.close()


def tokens_of(llama: Llama, text: str) -> list[int]:
    return llama.tokenize(text)


def follows(constraint: Constraint, llama: Llama, text: str) -> bool:
    """Whether every token of the text fits; those that do are accepted."""
    for token in tokens_of(llama, text):
        if not constraint.takes(token):
            return False
        constraint.accept(token)
    return True


def fitting(constraint: Constraint, llama: Llama) -> np.ndarray:
    rows = token_rows(np.zeros(llama.n_vocab, np.float32))
    constraint.mask(rows)
    return np.isfinite(rows["logit"])


@contextmanager
def llama_cpp_sampler(llama: Llama, gbnf: str) -> Iterator[object]:
    sampler = lib.llama_sampler_init_grammar(llama.vocab, gbnf.encode(), b"root")
    assert sampler
    yield sampler
    lib.llama_sampler_free(sampler)


@pytest.mark.parametrize(
    "gbnf",
    [
        'root ::= "alpha " ("beta " | "gamma ") "delta"',
        'root ::= ([a-z]+ " ")*',
        'root ::= [^"\\n]* "é" .',
        'root ::= (word (" " word)*)?\nword ::= [a-z]+ | [^\\x00-\\x7F]',
        'root ::= x | y\nx ::= "a"\ny ::= x{2,3} | <[120]> "b" | !<[130]>',
        'root ::= "b" | !<[130]> | !<[131]> "a" | !<[130]> "b"',
        'root ::= e* more\nmore ::= "a" more | e\ne ::= "x"?',
        'root ::= [あ-ん]+ | [é-ü]* "z"',
        'root ::= "1" root "]" | "1" root "}" | "2"',
        any_json_to_gbnf(),
        choice_to_gbnf(["yes", "no", "maybe", "später", "日本"]),
        json_schema_to_gbnf(json.dumps(NESTED)),
    ],
)
def test_the_tokens_that_fit_are_those_that_llama_cpp_lets_come(llama: Llama, gbnf: str) -> None:
    dice = random.Random(gbnf)
    for _ in range(3):
        constraint = Constraint.build(llama, AnswerGrammar(gbnf, "root").compiled())
        with llama_cpp_sampler(llama, gbnf) as sampler:
            cut = b""
            for _ in range(8):  # more of them is more than llama.cpp can follow
                theirs = token_rows(np.zeros(llama.n_vocab, np.float32))
                candidates = candidates_of(theirs)
                lib.llama_sampler_apply(sampler, ctypes.byref(candidates))
                ours, expected = fitting(constraint, llama), np.isfinite(theirs["logit"])
                for token in np.flatnonzero(ours != expected).tolist():
                    # It takes bytes for characters that are none.
                    assert not ours[token]
                    assert read_text(cut + llama.token_bytes(token)) is None
                likely = [t for t in np.flatnonzero(ours).tolist() if t not in llama.end_tokens]
                if not likely:
                    break
                token = dice.choice(likely)
                assert constraint.takes(token)
                constraint.accept(token)
                lib.llama_sampler_accept(sampler, token)
                read = read_text(cut + llama.token_bytes(token))
                cut = read[1] if read is not None else b""


def test_every_token_is_taken_exactly_when_the_mask_leaves_it(llama: Llama) -> None:
    constraint = Constraint.build(
        llama, AnswerGrammar('root ::= [a-z] "é"+ <[120]>? "." [0-9]*', "root").compiled()
    )
    for text in ("q", "é", ".", "5"):
        fits = fitting(constraint, llama)
        assert fits.tolist() == [constraint.takes(token) for token in range(llama.n_vocab)]
        assert follows(constraint, llama, text)


def test_a_grammar_that_names_thousands_of_tokens_looks_at_the_vocabulary_once() -> None:
    num_tokens, num_names = 150_000, 20_000
    trie = TokenTrie.of([b"%d" % number for number in range(num_tokens)])
    automaton = PushdownAutomaton(
        compile_gbnf("root ::= " + " | ".join(f"!<[{n}]>" for n in range(num_names)), "root"),
        trie.code_points,
    )
    ids = {text: int(text.text[2:-2]) for text in automaton.tokens}
    grammar = _TokenGrammar(automaton, trie, frozenset([0]), ids, trie.classes_in(automaton))
    automaton.begin()
    began_s = time.thread_time()
    fits = grammar.mask(_State(automaton.start))
    assert time.thread_time() - began_s < 0.6  # a look for each name takes more than a second
    assert fits.tolist() == [False] + [True] * (num_tokens - 1)


ALTERNATIVES = " | ".join(f'"alternative {n}"' for n in range(9000))
LADDER = "\n".join(f'r{n} ::= r{n + 1} "a" | r{n + 1} "b"' for n in range(17)) + '\nr17 ::= "x"'


@pytest.mark.parametrize(
    ("gbnf", "text"),
    [
        # 2^60 leftmost paths; 2^17 stacks before the first character; 2^40 readings of blanks
        (LADDER.replace("17", "60").replace("r0", "root"), "x"),
        (f"root ::= r0\n{LADDER}", "xab"),
        ('root ::= ([ ]+ " "? [ ]*)* "x"', " " * 40 + "x"),
        ('root ::= (word " "?)*\nword ::= [a-z]+', "abcdefgh" * 8),
        # 2^n ways to go on after n characters, of any kind and behind any beginning
        ('root ::= "Q" root "b" | "Q" root "c" | "Q"', "Q" * 40 + "bc"),
        ('root ::= [^a] root "b" | [^a] root "c" | "q"', "Q" * 40 + "qbc"),
        (
            'root ::= "once" [a-z]{100} r\nr ::= "-" r "b" | "-" r "c" | "-"',
            "once" + "a" * 100 + "--",
        ),
        ("root ::= " + " | ".join(f'"Q" root "{n}"' for n in range(1000)) + ' | "Q"', "Q" * 20),
        (json_schema_to_gbnf(json.dumps(NESTED)), "[" * 40 + "5" + "]" * 40),
        (
            "root ::= (" + " | ".join(f'"alternative {n}"' for n in range(9000)) + ")*",
            "alternative 8",
        ),
    ],
)
def test_what_llama_cpp_cannot_follow_costs_little(llama: Llama, gbnf: str, text: str) -> None:
    inspect_gbnf(gbnf, "root")
    began_s = time.thread_time()
    constraint = Constraint.build(llama, AnswerGrammar(gbnf, "root").compiled())
    assert fitting(constraint, llama).any()
    assert follows(constraint, llama, text)
    assert fitting(constraint, llama).any()
    assert time.thread_time() - began_s < 5.0  # llama.cpp takes minutes, or for ever


@pytest.mark.thorough
def test_one_call_has_a_limit_and_so_has_an_answer(llama: Llama) -> None:
    """Stacks are counted, not seconds: the same request ends the same way on every machine."""
    optional = "\n".join(f'r{n} ::= "a"? r{n + 1}' for n in range(2000)) + '\nr2000 ::= "b"'
    constraint = Constraint.build(llama, AnswerGrammar(optional, "r0").compiled())
    with pytest.raises(GrammarRejectedError, match="again and again"):
        follows(constraint, llama, "a" * 500)
    many = " ".join(f"([a-{chr(97 + n % 26)}]* [^{chr(97 + n % 26)}]?)" for n in range(800))
    constraint = Constraint.build(llama, AnswerGrammar(f"root ::= {many}", "root").compiled())
    with pytest.raises(GrammarRejectedError, match="too many ways here"):
        fitting(constraint, llama)


def test_a_token_that_a_rule_names_is_taken_whole(llama: Llama) -> None:
    """``"a" <[n]>`` where n is "ab": llama.cpp takes the token for both and aborts the process."""
    [token] = tokens_of(llama, "at")
    constraint = Constraint.build(
        llama, AnswerGrammar(f'root ::= "a" <[{token}]>', "root").compiled()
    )
    assert not constraint.takes(token)
    assert follows(constraint, llama, "a")
    assert constraint.takes(token)
    assert fitting(constraint, llama).sum() == 1


@pytest.mark.parametrize("name", ["<[99999999]>", "<no token>"])
def test_a_token_that_the_model_does_not_have_is_refused(llama: Llama, name: str) -> None:
    with pytest.raises(GrammarInvalidError, match="no token of this model"):
        Constraint.build(llama, AnswerGrammar(f"root ::= {name}", "root").compiled())


def test_an_answer_goes_on_where_another_one_stood(llama: Llama) -> None:
    grammar = AnswerGrammar(any_json_to_gbnf(), "root").compiled()
    first, second = (Constraint.build(llama, grammar) for _ in range(2))
    assert follows(first, llama, '{"a": [1, {"b')
    assert follows(second, llama, '{"a": [1, {"b')
    assert fitting(first, llama).tolist() == fitting(second, llama).tolist()
    assert follows(second, llama, '": null}]}')
    assert fitting(second, llama).sum() == len(llama.end_tokens)


@pytest.mark.thorough
def test_memory_is_given_back_during_a_long_answer(llama: Llama) -> None:
    grammar = AnswerGrammar(
        'root ::= (item "-"){0,300}\nitem ::= "x" [a-z]{0,300}', "root"
    ).compiled()
    constraint = Constraint.build(llama, grammar)
    automaton = constraint._grammar.automaton
    largest = 0
    for _ in range(100):
        assert follows(constraint, llama, "x" + "abcdefghij" * 30 + "-")
        largest = max(largest, len(automaton._stacks))
    assert len(automaton._stacks) < largest


def test_a_grammar_is_compiled_once_unless_it_is_large(llama: Llama) -> None:
    def automaton_of(gbnf: str) -> object:
        return Constraint.build(llama, AnswerGrammar(gbnf, "root").compiled())._grammar.automaton

    assert automaton_of('root ::= "kept"') is automaton_of('root ::= "kept"')
    large = f'root ::= "{"x" * 100}"{{1000}}'
    assert automaton_of(large) is not automaton_of(large)


def test_a_trie_has_the_tokens_that_are_text() -> None:
    pieces = [b"a", b"ab", b"", b"\xc3", b"\xa9", b"b\xc3", b"\xff", b"a\0", "é".encode()]
    trie = TokenTrie.of(pieces)
    assert trie.is_text.tolist() == [True, True, *[False] * 6, True]
    assert {cut: tokens.tolist() for cut, tokens in trie.cut.items()} == {b"\xc3": [3, 5]}
    assert trie.continuing == (4,)


@pytest.mark.parametrize("is_open", [True, False], ids=["open in the prompt", "opened"])
@pytest.mark.parametrize(
    ("opener", "is_token"),
    [("<tool_call>", True), ("<call:", False)],
    ids=["a token", "a text"],
)
def test_a_sleeping_grammar_is_not_woken_by_thoughts(
    llama: Llama, opener: str, is_token: bool, is_open: bool
) -> None:
    """Nor by what stood in them, once they are over."""
    grammar = AnswerGrammar(
        f'root ::= "{opener}" "yes"',
        "root",
        trigger_tokens=tokens_of(llama, opener) if is_token else [],
        trigger_patterns=[] if is_token else [f"({opener})"],
        thoughts=Thoughts("<think>", "</think>", is_open),
    ).compiled()
    constraint = Constraint.build(llama, grammar)
    assert follows(constraint, llama, "" if is_open else "Well. <think>")
    assert follows(constraint, llama, f"Calls begin with {opener}, I think.</thin no </think> So: ")
    assert not constraint.is_awake
    assert follows(constraint, llama, f"<think>or {opener}</think>")
    assert not constraint.is_awake
    assert not follows(constraint, llama, f"{opener}no")
    assert constraint.is_awake
    assert follows(constraint, llama, "yes")


MANY = "".join(map(chr, range(0x10000, 0x10000 + 200_000)))


@pytest.mark.parametrize(
    "gbnf",
    [
        f'root ::= [a-z ]{{0,400}} | "\x07" "{MANY}"',
        "root ::= " + " ".join(f"[^{MANY[n : n + 20_000 : 2]}]*" for n in range(20)),
        'root ::= ("' + "x" * 240 + '"){0,2000}',
        "root ::= [a-z ]*" + "".join(f' | "x" [{MANY[n::2000]}]' for n in range(2000)),
    ],
    ids=["a literal", "negated sets", "counts", "sets of ranges"],
)
def test_an_engine_makes_nothing_for_each_character_of_a_grammar(llama: Llama, gbnf: str) -> None:
    """It held some hundred bytes for each, and a column of four in every state: gigabytes."""
    grammar = AnswerGrammar(gbnf, "root").compiled()
    tracemalloc.start()
    try:
        constraint = Constraint.build(llama, grammar)
        for _ in range(30):
            token = int(np.flatnonzero(fitting(constraint, llama))[-1])
            if token in llama.end_tokens or not constraint.takes(token):
                break
            constraint.accept(token)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 32_000_000


def test_a_large_grammar_takes_nobody_the_one_that_is_kept(llama: Llama) -> None:
    kept = AnswerGrammar('root ::= "kept too"', "root").compiled()
    automaton = Constraint.build(llama, kept)._grammar.automaton
    large = AnswerGrammar(f'root ::= "{"x" * 100}"{{1000}}', "root").compiled()
    Constraint.build(llama, large)
    assert Constraint.build(llama, kept)._grammar.automaton is automaton


def test_states_that_are_forgotten_keep_no_masks(llama: Llama) -> None:
    grammar = AnswerGrammar('root ::= (item "-"){0,300}\nitem ::= "x" [a-z]{0,300}', "root")
    constraint = Constraint.build(llama, grammar.compiled())
    masks = constraint._grammar._masks
    most = 0
    for _ in range(60):
        fitting(constraint, llama)
        most = max(most, len(masks))
        assert follows(constraint, llama, "x" + "abcdefghij" * 30 + "-")
    assert len(masks) < most
