"""Which tokens a grammar lets come, compared with llama.cpp's sampler, and what that may cost."""

from __future__ import annotations

import codecs
import ctypes
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import attrs
import llama_cpp.llama_cpp as lib
import numpy as np
import pytest
from llguidance import LLMatcher

from paddler_trio.language.grammars.conversion import (
    write_any_object,
    write_schema,
)
from paddler_trio.language.grammars.lark import GrammarError
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.processes.engine.sampling import constraint as constraint_module
from paddler_trio.processes.engine.sampling.candidates import candidates_of
from paddler_trio.processes.engine.sampling.constraint import (
    TIME_FOR_ANSWER_S,
    Constraint,
    GrammarInvalidError,
    GrammarRejectedError,
)
from paddler_trio.processes.engine.sampling.sampler import Sampler
from paddler_trio.system.machine import resident_bytes
from paddler_trio.wire.engine.engine_pipe import Thoughts
from samplings import GREEDY
from written_grammars import gbnf, takes, written

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
    return all(constraint.advance(token) for token in tokens_of(llama, text))


def fitting(constraint: Constraint, llama: Llama) -> np.ndarray:
    fits = np.zeros(llama.n_vocab, bool)
    fits[constraint.allowed()] = True
    return fits


@contextmanager
def llama_cpp_sampler(llama: Llama, text: str) -> Iterator[object]:
    sampler = lib.llama_sampler_init_grammar(llama.vocab, text.encode(), b"root")
    assert sampler
    yield sampler
    lib.llama_sampler_free(sampler)


def is_text(piece: bytes) -> bool:
    """Whether bytes may stand in a text of UTF-8."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(piece)
    except UnicodeDecodeError:
        return False
    return b"\0" not in piece


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "alpha " ("beta " | "gamma ") "delta"',
        'root ::= ([a-z]+ " ")*',
        'root ::= [^"\\n]* "é" .',
        'root ::= (word (" " word)*)?\nword ::= [a-z]+ | [^\\x00-\\x7F]',
        'root ::= x | y\nx ::= "a"\ny ::= x{2,3} | <[1528]> "b"',
        'root ::= e* more\nmore ::= "a" more | e\ne ::= "x"?',
        'root ::= [あ-ん]+ | [é-ü]* "z"',
        'root ::= "1" root "]" | "1" root "}" | "2"',
        'root ::= "if" | "in" | [a-z]+ | "iffy!"',
    ],
)
def test_the_tokens_that_fit_are_those_that_llama_cpp_lets_come(llama: Llama, text: str) -> None:
    dice = random.Random(text)
    for _ in range(3):
        constraint = Constraint.build(llama, gbnf(text))
        with llama_cpp_sampler(llama, text) as sampler:
            sampled = b""
            for _ in range(8):  # more of them is more than llama.cpp can follow
                theirs = candidates_of(np.zeros(llama.n_vocab, np.float32))
                lib.llama_sampler_apply(sampler, ctypes.byref(theirs.raw))
                expected = np.isfinite(theirs.rows["logit"])
                taken = np.array([takes(constraint, token) for token in range(llama.n_vocab)])
                for token in np.flatnonzero(taken != expected).tolist():
                    assert not taken[token]  # it takes bytes for characters that are none
                    assert not is_text(sampled + llama.token_bytes(token))
                assert (fitting(constraint, llama) == taken).all()
                likely = [t for t in np.flatnonzero(taken).tolist() if t not in llama.end_tokens]
                if not likely:
                    break
                token = dice.choice(likely)
                assert constraint.advance(token)
                lib.llama_sampler_accept(sampler, token)
                sampled += llama.token_bytes(token)


LADDER = "\n".join(f'r{n} ::= r{n + 1} "a" | r{n + 1} "b"' for n in range(17)) + '\nr17 ::= "x"'


@pytest.mark.parametrize(
    ("text", "answer"),
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
    ],
)
def test_what_llama_cpp_cannot_follow_costs_little(llama: Llama, text: str, answer: str) -> None:
    began_s = time.thread_time()
    constraint = Constraint.build(llama, gbnf(text))
    assert fitting(constraint, llama).any()
    assert follows(constraint, llama, answer)
    assert fitting(constraint, llama).any()
    assert time.thread_time() - began_s < 5.0  # llama.cpp takes minutes, or for ever


def test_a_schema_that_contains_itself_in_many_ways_costs_little(llama: Llama) -> None:
    constraint = Constraint.build(
        llama, written(lambda writer: write_schema(NESTED, writer)).compiled()
    )
    began_s = time.thread_time()
    assert follows(constraint, llama, "[" * 40 + "5" + "]" * 40)
    assert time.thread_time() - began_s < 1.0


@pytest.mark.parametrize(
    "text",
    [
        "root ::= " + " ".join(f"([a-{chr(97 + n % 26)}]* [^q]?)" for n in range(800)),
        "root ::= r0\n"
        + "\n".join(f'r{n} ::= "a"? r{n + 1}' for n in range(2000))
        + '\nr2000 ::= "b"',
        'root ::= ("a"{0,100}){100}',
        f"root ::= {'([a-z]* [^b]?) ' * 400}",
        "root ::= (" + " | ".join(f'"alternative {n}"' for n in range(9000)) + ")*",
        "root ::= " + " | ".join(f'"Q" root "{n}"' for n in range(1000)) + ' | "Q"',
    ],
    ids=["classes", "optional rules", "counts", "options", "alternatives", "readings"],
)
def test_one_call_has_a_limit_and_so_has_an_answer(llama: Llama, text: str) -> None:
    try:
        constraint = Constraint.build(llama, gbnf(text))
    except GrammarError:
        return
    calls = []
    with suppress(GrammarRejectedError):
        for _ in range(500):
            began_s = time.thread_time()
            allowed = constraint.allowed()
            calls.append(time.thread_time() - began_s)
            fits = [token for token in allowed.tolist() if token not in llama.end_tokens]
            if not fits:
                break
            assert constraint.advance(fits[0])
    assert sum(calls) < 2 * TIME_FOR_ANSWER_S + 0.01 * len(calls)
    assert not calls or max(calls) < 2 * TIME_FOR_ANSWER_S


def test_a_token_that_a_rule_names_is_taken_whole(llama: Llama) -> None:
    """``"a" <[n]>`` where n is "ab": llama.cpp takes the token for both and aborts the process."""
    [token] = tokens_of(llama, "at")
    constraint = Constraint.build(llama, gbnf(f'root ::= "a" <[{token}]>'))
    assert not takes(constraint, token)
    assert follows(constraint, llama, "a")
    assert takes(constraint, token)
    assert fitting(constraint, llama).sum() == 1


def test_any_other_token_is_none_that_ends_an_answer(llama: Llama) -> None:
    [token] = tokens_of(llama, "at")
    constraint = Constraint.build(
        llama, gbnf(f"root ::= !<[{token}]>* <[{token}]>", end_tokens=llama.end_tokens)
    )
    assert follows(constraint, llama, "hello <think>")
    assert not any(takes(constraint, end) for end in llama.end_tokens)
    assert follows(constraint, llama, "at")
    assert all(takes(constraint, end) for end in llama.end_tokens)


def test_a_token_that_the_model_does_not_have_is_refused(llama: Llama) -> None:
    with pytest.raises(GrammarInvalidError):
        Constraint.build(llama, gbnf("root ::= <[99999999]>"))
    with pytest.raises(GrammarError, match="no token of this model"):
        gbnf("root ::= <no token>")


def test_an_answer_goes_on_where_another_one_stood(llama: Llama) -> None:
    grammar = written(write_any_object).compiled()
    first, second = (Constraint.build(llama, grammar) for _ in range(2))
    assert follows(first, llama, '{"a": [1, {"b')
    assert follows(second, llama, '{"a": [1, {"b')
    assert fitting(first, llama).tolist() == fitting(second, llama).tolist()
    assert follows(second, llama, '": null}]}')
    assert fitting(second, llama).sum() == len(llama.end_tokens)
    end = llama.end_tokens[0]
    for _ in range(2):  # what ends an answer may come again
        assert second.advance(end)


def test_a_text_that_is_certain_for_ever_is_looked_at_once(llama: Llama) -> None:
    """Looking ahead for what is certain has no limit in the library, so it is turned off."""
    for text in ('root ::= "Q" root "x"', f'root ::= "{"Q" * 20_000}"'):
        began_s = time.thread_time()
        constraint = Constraint.build(llama, gbnf(text))
        assert follows(constraint, llama, "QQQQ")
        assert fitting(constraint, llama).any()
        assert time.thread_time() - began_s < 1.0


def test_grammars_are_kept_within_a_budget(llama: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile_one(llama: Llama, lark: str) -> LLMatcher:
        compiled.append(lark)
        return compile_grammar(llama, lark)

    compile_grammar = constraint_module._compiled
    monkeypatch.setattr(constraint_module, "_compiled", compile_one)
    monkeypatch.setattr(constraint_module, "KEPT_CHARS", 10_000)
    small, other = gbnf('root ::= "kept"'), gbnf('root ::= "kept, too"')
    large = gbnf('root ::= "' + "x" * 4_000 + '"')
    for grammar in (small, other, small, large, small):
        assert follows(Constraint.build(llama, grammar), llama, "")
    assert compiled == [small.lark, other.lark, large.lark, small.lark]


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
    grammar = gbnf(
        f'root ::= "{opener}" "yes"',
        trigger_tokens=tokens_of(llama, opener) if is_token else [],
        trigger_patterns=[] if is_token else [f"({opener})"],
        thoughts=Thoughts("<think>", "</think>", is_open),
    )
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
    "text",
    [
        f'root ::= [a-z ]{{0,400}} | "\x07" "{MANY}"',
        "root ::= " + " ".join(f"[^{MANY[n : n + 20_000 : 2]}]*" for n in range(20)),
        'root ::= ("' + "x" * 240 + '"){0,2000}',
        "root ::= [a-z ]*" + "".join(f' | "x" [{MANY[n::2000]}]' for n in range(2000)),
    ],
    ids=["a literal", "negated sets", "counts", "sets of ranges"],
)
def test_very_many_characters_cost_their_own_answer_only(llama: Llama, text: str) -> None:
    """Each was a class of its own once, and each state a column for every one: gigabytes."""
    began_s, before_bytes = time.thread_time(), resident_bytes()
    with suppress(GrammarError, GrammarRejectedError, GrammarInvalidError):
        constraint = Constraint.build(llama, gbnf(text))
        for _ in range(30):
            token = int(constraint.allowed()[-1])
            if token in llama.end_tokens or not constraint.advance(token):
                break
    assert resident_bytes() - before_bytes < 300_000_000
    assert time.thread_time() - began_s < 6.0


@pytest.mark.parametrize("bias", [{}, {3: -1.0}], ids=["the same", "one is lowered"])
def test_greedy_answers_are_those_of_llama_cpps_chain(llama: Llama, bias: dict[int, float]) -> None:
    """Without it where nothing changes a logit, and through it where something might."""
    grammar = written(write_any_object).compiled()
    plain, chained = (
        Sampler.build(llama, attrs.evolve(GREEDY, logit_bias=biases), grammar, cells=64)
        for biases in ({}, {3: 0.0, **bias})
    )
    assert (plain.is_plain, chained.is_plain) == (True, False)
    dice = np.random.default_rng(5)
    num_unfit = 0
    for _ in range(60):
        logits = dice.integers(0, 400, llama.n_vocab).astype(np.float32)  # many are equal
        logits[list(llama.end_tokens)] = logits[3] = -1.0
        tokens = []
        for sampler in (plain, chained):
            assert sampler._constraint is not None
            token = sampler._selected(logits)
            if not sampler._constraint.advance(token):
                num_unfit += 1
                token = sampler._fitting(sampler._constraint, token, logits)
            tokens.append(token)
        assert tokens[0] == tokens[1]
    assert num_unfit > 4
    plain.close()
    chained.close()
