"""What bound answers cost, for twenty schemas as applications write them.

Milliseconds from a schema that is new to the first mask, microseconds to check and accept a token
that fits and to take the candidates that a mask leaves, in batches of eight and of 32: processor
time of the thread, since other programs are not measured. MiB for the tokenizer, and for answers.
How fast bound streams are: ``python benchmarks/whole_path.py --only bound``.
Usage: ``python benchmarks/grammars.py [vocabulary.gguf]``; ``... widen vocabulary.gguf wider.gguf
128256`` writes a vocabulary of more tokens.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter

from paddler_trio.language.grammars.conversion import AnswerGrammar, check_grammar, write_schema
from paddler_trio.language.grammars.lark import LarkWriter
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.processes.engine.sampling import constraint as constraints
from paddler_trio.processes.engine.sampling.candidates import candidates_of
from paddler_trio.processes.engine.sampling.constraint import Constraint
from paddler_trio.system.machine import resident_bytes
from paddler_trio.wire.engine.engine_pipe import Grammar

BATCHES = (8, 32)


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


def grammar_of(schema: object) -> Grammar:
    writer = LarkWriter()
    return AnswerGrammar(writer.text(write_schema(schema, writer))).compiled()


def first_mask_ms(llama: Llama, schema: object) -> float:
    """Milliseconds from a schema that is new to the first mask, compiled twice as it is for a
    request: in preparation and by the engine."""
    check_grammar.cache_clear()
    constraints._KEPT = constraints._Kept()
    began_s = time.thread_time()
    Constraint.build(llama, grammar_of(schema)).allowed()
    return 1e3 * (time.thread_time() - began_s)


def per_token_us(
    llama: Llama, schema: object, tokens: list[int], batch: int
) -> tuple[float, float]:
    """Microseconds to check and accept a token, and to take the candidates that a mask leaves."""
    grammar = grammar_of(schema)
    answers = [Constraint.build(llama, grammar) for _ in range(batch)]
    logits = np.zeros(llama.n_vocab, np.float32)
    check_s = mask_s = 0.0
    for place, token in enumerate(tokens):
        for answer in answers:
            began_s = time.thread_time()
            candidates_of(logits, answer.allowed())
            mask_s += time.thread_time() - began_s
            began_s = time.thread_time()
            if not answer.advance(token):
                raise ValueError(f"token {token}, number {place}, is refused")
            check_s += time.thread_time() - began_s
    count = len(tokens) * batch
    return 1e6 * check_s / count, 1e6 * mask_s / count


def more_resident_mib(llama: Llama, sequences: int) -> float:
    """MiB that so many answers take more at their ends, of all schemas in turn."""
    constraints._KEPT = constraints._Kept()
    before_bytes, answers = resident_bytes(), []
    for number in range(sequences):
        schema, value = list(SCHEMAS.values())[number % len(SCHEMAS)]
        answer = Constraint.build(llama, grammar_of(schema))
        for token in llama.tokenize(json.dumps(value, ensure_ascii=False)):
            answer.allowed()
            answer.advance(token)
        answers.append(answer)
    return (resident_bytes() - before_bytes) / 2**20


def widen(path: str, to: str, num_tokens: int) -> None:
    """Write a vocabulary like another one with more texts, of which each is two of the others."""
    reader, writer = GGUFReader(path), GGUFWriter(to, "llama")
    kept = {key: reader.fields[f"tokenizer.ggml.{key}"].contents() for key in ("pre", "merges")}
    texts = list(reader.fields["tokenizer.ggml.tokens"].contents())
    kinds = list(reader.fields["tokenizer.ggml.token_type"].contents())
    known, plain = set(texts), [t for t, kind in zip(texts, kinds, strict=True) if kind == 1]
    pairs = (
        a + b for step in range(1, len(plain)) for a, b in zip(plain, plain[step:], strict=False)
    )
    while len(texts) < num_tokens:
        text = next(pairs)
        if text not in known:
            known.add(text)
            texts.append(text)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kept["pre"])
    writer.add_token_list(texts)
    writer.add_token_types(kinds + [1] * (len(texts) - len(kinds)))
    writer.add_token_merges(kept["merges"])
    writer.add_eos_token_id(reader.fields["tokenizer.ggml.eos_token_id"].contents())
    writer.add_context_length(2048)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_feed_forward_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main(path: str) -> None:
    vocabulary = Vocabulary.load(path)
    llama = Llama(vocabulary._model)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = time.thread_time()
    _ = llama.grammar_tokenizer
    took_ms = 1e3 * (time.thread_time() - began_s)
    more_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
    print(f"{llama.n_vocab} tokens: tokenizer {took_ms:.0f} ms, {more_mb:.0f} MiB")
    firsts: list[float] = []
    rows: dict[int, list[tuple[float, float]]] = {batch: [] for batch in BATCHES}
    for name, (schema, value) in SCHEMAS.items():
        tokens = llama.tokenize(json.dumps(value, ensure_ascii=False))
        firsts.append(first_mask_ms(llama, schema))
        for batch in BATCHES:
            rows[batch].append(per_token_us(llama, schema, tokens, batch))
        shown = ", ".join(f"{us:.1f}" for batch in BATCHES for us in rows[batch][-1])
        print(f"{name:14} first {firsts[-1]:.2f} ms; check, mask: {shown} us")
    print(f"first mask {statistics.median(firsts):.2f} ms (worst {max(firsts):.1f})")
    for batch, costs in rows.items():
        checks, masks = zip(*costs, strict=True)
        print(
            f"batch of {batch}: check {statistics.median(checks):.1f} us ({max(checks):.1f}), "
            f"mask {statistics.median(masks):.0f} us ({max(masks):.0f})"
        )
    mib = ", ".join(f"{count}: {more_resident_mib(llama, count):.1f}" for count in (1, 8, 32))
    print(f"resident MiB more with so many answers: {mib}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["widen"]:
        widen(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        print(f"{Path(sys.argv[3]).stat().st_size} bytes")
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else str(BUNDLED_MODEL))
