"""What bound answers cost: our automaton, llama.cpp's sampler and, if installed, llguidance.

For each of twenty schemas as applications write them: milliseconds from the schema to the first
mask, microseconds to check a token that fits and to mask the vocabulary, in a batch of eight.
``llguidance`` is no dependency of ours: put it into an environment of its own to compare with it.
Usage: ``python benchmarks/grammars.py [vocabulary.gguf]``.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

import llama_cpp.llama_cpp as lib
import numpy as np
from paddler_trio.language.grammars.gbnf_compilation import AnswerGrammar, compile_gbnf
from paddler_trio.language.grammars.gbnf_conversion import json_schema_to_gbnf
from paddler_trio.language.grammars.gbnf_reader import read_gbnf

from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.processes.engine.sampling.candidates import TOKEN_DATA, candidates_of, token_rows
from paddler_trio.processes.engine.sampling.constraint import Constraint, _kept_grammar

BATCH = 8


def _object(required: list[str], **properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


TEXT = {"type": "string"}
NUMBER = {"type": "number"}
WHOLE = {"type": "integer"}
FLAG = {"type": "boolean"}


def _list(items: object, **limits: object) -> dict[str, object]:
    return {"type": "array", "items": items, **limits}


ADDRESS = _object(
    ["street", "city"],
    street=TEXT,
    city=TEXT,
    zip={"type": "string", "pattern": "^[0-9]{5}(-[0-9]{4})?$"},
    country={"enum": ["DE", "FR", "GB", "JP", "US"]},
)
PERSON = _object(
    ["name", "age"], name=TEXT, age={"type": "integer", "minimum": 0, "maximum": 150}, home=ADDRESS
)
SCHEMAS: dict[str, tuple[dict[str, object], object]] = {
    "weather": (
        _object(["city"], city=TEXT, unit={"enum": ["celsius", "fahrenheit"]}),
        {"city": "Gdańsk", "unit": "celsius"},
    ),
    "person": (
        PERSON,
        {"name": "Ada", "age": 36, "home": {"street": "St James's", "city": "London"}},
    ),
    "people": (
        _object(["people"], people=_list(PERSON)),
        {"people": [{"name": "A", "age": 1}] * 3},
    ),
    "search": (
        _object(["query"], query=TEXT, limit={"type": "integer", "minimum": 1, "maximum": 100}),
        {"query": "slots of a balancer", "limit": 25},
    ),
    "email": (
        _object(["to", "subject"], to=_list({**TEXT, "format": "email"}), subject=TEXT, body=TEXT),
        {"to": ["ada@example.org"], "subject": "Hello", "body": "How are you?\nAda"},
    ),
    "event": (
        _object(
            ["title", "start"],
            title=TEXT,
            start={**TEXT, "format": "date-time"},
            guests=_list(TEXT),
        ),
        {"title": "Lunch", "start": "2024-05-01T12:00:00Z", "guests": ["Ada", "Charles"]},
    ),
    "sentiment": (
        _object(
            ["label", "score"], label={"enum": ["positive", "neutral", "negative"]}, score=NUMBER
        ),
        {"label": "neutral", "score": 0.25},
    ),
    "tree": (
        {
            "$ref": "#/$defs/node",
            "$defs": {"node": _object(["v"], v=WHOLE, children=_list({"$ref": "#/$defs/node"}))},
        },
        {"v": 1, "children": [{"v": 2, "children": [{"v": 3}]}, {"v": 4}]},
    ),
    "any of": (
        {"anyOf": [ADDRESS, PERSON, {"type": "null"}]},
        {"street": "Main", "city": "Oslo", "country": "GB"},
    ),
    "union by kind": (
        {
            "oneOf": [
                _object(["kind", "r"], kind={"const": "circle"}, r=NUMBER),
                _object(["kind", "w", "h"], kind={"const": "box"}, w=NUMBER, h=NUMBER),
            ]
        },
        {"kind": "box", "w": 1.5, "h": 2},
    ),
    "matrix": (
        _list(_list(NUMBER, minItems=3, maxItems=3), minItems=3, maxItems=3),
        [[1, 2, 3]] * 3,
    ),
    "ids": (
        _object(["ids"], ids=_list({**TEXT, "format": "uuid"}, maxItems=20)),
        {"ids": ["0b7ad0c7-5b3a-4a0e-8f0e-0123456789ab"] * 3},
    ),
    "phone": (
        _object(["phone"], phone={**TEXT, "pattern": r"^\+[1-9][0-9]{1,14}$"}),
        {"phone": "+4930123456"},
    ),
    "short texts": (
        _object(["tags"], tags=_list({**TEXT, "minLength": 1, "maxLength": 40}, maxItems=10)),
        {"tags": ["balancer", "slots", "grammar"]},
    ),
    "map": (
        {"type": "object", "additionalProperties": NUMBER},
        {"load": 0.5, "slots": 8, "agents": 3},
    ),
    "nullable": (
        _object(["a", "b"], a={"type": ["string", "null"]}, b={"type": ["integer", "null"]}),
        {"a": None, "b": 3},
    ),
    "many fields": (
        _object([], **{f"field_{n}": TEXT if n % 2 else WHOLE for n in range(40)}),
        {f"field_{n}": "x" if n % 2 else n for n in range(0, 40, 3)},
    ),
    "many choices": (
        _object(["product"], product={"enum": [f"product-{n:04d}" for n in range(500)]}),
        {"product": "product-0321"},
    ),
    "any object": ({"type": "object"}, {"a": [1, {"b": None}], "c": "text"}),
    "deep": (
        _object(["a"], a=_object(["b"], b=_object(["c"], c=_object(["d"], d=_list(PERSON))))),
        {"a": {"b": {"c": {"d": [{"name": "Ada", "age": 36}]}}}},
    ),
}


class Matcher(Protocol):
    """One answer under a grammar."""

    def takes(self, token: int) -> bool: ...
    def accept(self, token: int) -> None: ...
    def mask(self, logits: np.ndarray) -> None: ...


class Ours:
    def __init__(self, llama: Llama, schema: str) -> None:
        self._constraint = Constraint.build(
            llama, AnswerGrammar(json_schema_to_gbnf(schema), "root").compiled()
        )
        self.takes, self.accept = self._constraint.takes, self._constraint.accept

    def mask(self, logits: np.ndarray) -> None:
        rows = token_rows(logits)
        self._constraint.mask(rows)
        logits[:] = rows["logit"]

    @staticmethod
    def forget() -> None:
        for cache in (_kept_grammar, compile_gbnf, read_gbnf, json_schema_to_gbnf):
            cache.cache_clear()


class LlamaCpp:
    def __init__(self, llama: Llama, schema: str) -> None:
        gbnf = json_schema_to_gbnf(schema)
        self._grammar = lib.llama_sampler_init_grammar(llama.vocab, gbnf.encode(), b"root")

    def takes(self, token: int) -> bool:
        one = np.array([(token, 1.0, 0.0)], TOKEN_DATA)
        lib.llama_sampler_apply(self._grammar, ctypes.byref(candidates_of(one)))
        return bool(np.isfinite(one["logit"][0]))

    def accept(self, token: int) -> None:
        lib.llama_sampler_accept(self._grammar, token)

    def mask(self, logits: np.ndarray) -> None:
        rows = token_rows(logits)
        lib.llama_sampler_apply(self._grammar, ctypes.byref(candidates_of(rows)))
        logits[:] = rows["logit"]

    @staticmethod
    def forget() -> None:
        json_schema_to_gbnf.cache_clear()


class Guidance:
    tokenizers: dict[int, Any] = {}  # noqa: RUF012

    def __init__(self, llama: Llama, schema: str) -> None:
        import llguidance
        import llguidance.llamacpp
        import llguidance.numpy

        self._numpy = llguidance.numpy
        if id(llama) not in self.tokenizers:
            self.tokenizers[id(llama)] = llguidance.llamacpp.lltokenizer_from_vocab(llama.vocab)
        options = {"whitespace_flexible": True}
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=options)
        self._matcher = llguidance.LLMatcher(self.tokenizers[id(llama)], grammar)
        if problem := self._matcher.get_error():
            raise ValueError(problem)
        self._bits = self._numpy.allocate_token_bitmask(1, llama.n_vocab)

    def takes(self, token: int) -> bool:
        return bool(self._matcher.validate_tokens([token]) == 1)

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)

    def mask(self, logits: np.ndarray) -> None:
        self._numpy.fill_next_token_bitmask(self._matcher, self._bits)
        bits = np.unpackbits(self._bits.view(np.uint8), count=len(logits), bitorder="little")
        logits[bits == 0] = -np.inf

    @staticmethod
    def forget() -> None:
        return


def measured(
    make: Callable[[Llama, str], Any], llama: Llama, schema: str, tokens: list[int]
) -> Any:
    """Milliseconds to the first mask, microseconds of one check and of one mask."""
    make.forget()  # type: ignore[attr-defined]
    logits = np.zeros(llama.n_vocab, np.float32)
    began_s = time.perf_counter()
    first = make(llama, schema)
    first.mask(logits)
    first_ms = 1e3 * (time.perf_counter() - began_s)
    batch = [make(llama, schema) for _ in range(BATCH)]
    check_s = mask_s = 0.0
    num_checked = 0
    for token in tokens:
        for matcher in batch:
            logits[:] = 0
            began_s = time.perf_counter()
            matcher.mask(logits)
            mask_s += time.perf_counter() - began_s
            began_s = time.perf_counter()
            if not matcher.takes(token):
                raise ValueError(f"refuses token {token}, number {num_checked // BATCH}")
            matcher.accept(token)
            check_s += time.perf_counter() - began_s
            num_checked += 1
    return first_ms, 1e6 * check_s / num_checked, 1e6 * mask_s / num_checked


def contestants() -> Iterator[tuple[str, Any]]:
    yield "ours", Ours
    yield "llama.cpp", LlamaCpp
    with suppress(ImportError):
        import llguidance  # noqa: F401

        yield "llguidance", Guidance


def main(path: str) -> None:
    vocabulary = Vocabulary.load(path)
    llama = Llama(vocabulary._model)
    began_s = time.perf_counter()
    _ = llama.token_trie
    print(f"{llama.n_vocab} tokens, trie {1e3 * (time.perf_counter() - began_s):.0f} ms")
    simple = json.dumps({"type": "boolean"})
    for _, make in contestants():
        make(llama, simple)  # what is made once a vocabulary
    sums: dict[str, list[tuple[float, float, float]]] = {}
    for name, (schema, value) in SCHEMAS.items():
        tokens = llama.tokenize(json.dumps(value, ensure_ascii=False))
        for who, make in contestants():
            try:
                costs = measured(make, llama, json.dumps(schema), tokens)
            except ValueError as error:
                print(f"{name:14} {who:11} {error}")
                continue
            sums.setdefault(who, []).append(costs)
            print(f"{name:14} {who:11} {costs[0]:8.2f} ms {costs[1]:8.1f} us {costs[2]:9.1f} us")
    for who, rows in sums.items():
        middle = [statistics.median(column) for column in zip(*rows, strict=True)]
        worst = [max(column) for column in zip(*rows, strict=True)]
        print(f"{who:11} first mask {middle[0]:.2f} ms (worst {worst[0]:.1f}), ", end="")
        print(
            f"check {middle[1]:.1f} us ({worst[1]:.1f}), mask {middle[2]:.0f} us ({worst[2]:.0f})"
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(BUNDLED_MODEL))
