"""Hostile grammars: what is small to write, and large to compile or to follow."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from attack_call import Call, dumps, request
from attack_value import CONSTRAINED, Attack, Body, as_text, ask, attack_of, whole

TOKENS_BOUND = 100
"""Of an answer: each may bring new states of a grammar."""
_FIRST = 0x10000
"""From here on every code point is a character, and next to none is in a vocabulary."""


def _text(number: int, first: int = _FIRST) -> str:
    return "".join(map(chr, range(first, first + number)))


def _pieces(number: int, each: int) -> list[str]:
    return [_text(each, _FIRST + n * each) for n in range(number)]


def literal_of(number: int) -> str:
    """A literal of different characters behind a beginning that is never taken, beside palindromes:
    every text that begins one is a state."""
    letters = " | ".join(f'"{letter}" p? "{letter}"' for letter in "etaoinsr")
    return f'root ::= p | "\\x07" "{_text(number)}"\np ::= {letters}'


def sets_of(number: int, each: int) -> str:
    """Sets of every second character of a stretch, as ranges, each in an alternative."""
    sets = (
        "".join(chr(_FIRST + 2 * (n * each // 2 + place)) for place in range(each))
        for n in range(number)
    )
    return "root ::= [a-z ]* | " + " | ".join(f'"x" [{one}]' for one in sets)


def negated_of(number: int, each: int) -> str:
    """Sets of everything but other characters, one behind the other."""
    return "root ::= " + " ".join(f"[^{piece}]*" for piece in _pieces(number, each))


def counted_of(number: int, count: int) -> str:
    """Counted repetitions of different sets: each is as many rules as it counts."""
    parts = " ".join(f"[^{chr(_FIRST + n)}]{{0,{count}}}" for n in range(number))
    return f"root ::= {parts}"


def rules_of(number: int) -> str:
    """Very many rules, of which each has a character of its own and the next one."""
    rules = "\n".join(f'r{n} ::= "{chr(_FIRST + n)}" r{n + 1} | "a"' for n in range(number))
    return f'root ::= [a-z ]* | r0\n{rules}\nr{number} ::= "b"'


def _enum(number: int) -> object:
    return {"enum": _pieces(number, 20)}


def _names(number: int) -> object:
    return {"type": "object", "properties": {name: {} for name in _pieces(number, 10)}}


_GBNF: Sequence[Callable[[random.Random, float], tuple[str, str]]] = (
    lambda dice, scale: _named("a literal", literal_of, whole(dice, 20_000, 200_000, scale)),
    lambda dice, scale: _named("sets", sets_of, whole(dice, 20, 2000, scale), 100),
    lambda dice, scale: _named("negated sets", negated_of, whole(dice, 4, 400, scale), 400),
    lambda dice, scale: _named("counts", counted_of, whole(dice, 2, 100, scale), 2000),
    lambda dice, scale: _named("rules", rules_of, whole(dice, 1000, 10_000, scale)),
)


def _named(what: str, make: Callable[..., str], *numbers: int) -> tuple[str, str]:
    return f"{what} {' x '.join(map(str, numbers))}", make(*numbers)


def bound(path: str, kind: str, text: str) -> Body:
    """The request of a surface, bound to a grammar, a schema as JSON, or a pattern."""
    longer = {"n_predict" if path == "/completion" else "max_tokens": TOKENS_BOUND}
    if path != "/api/v2/generate":
        fields = {"gbnf": "grammar", "json_schema": "json_schema", "regex": "guided_regex"}
        return ask(path, **{fields[kind]: text}, **longer)
    more = {"gbnf": {"root": "root"}}.get(kind, {})
    name = {"gbnf": "grammar", "json_schema": "schema", "regex": "pattern"}[kind]
    return ask(path, constraint={"type": kind, name: text, **more}, **longer)


def characters(dice: random.Random, scale: float) -> Attack:
    """One form that tells very many characters apart."""
    path = dice.choice(CONSTRAINED)
    kind = dice.choice(["gbnf", "gbnf", "gbnf", "enum", "names", "regex"])
    if kind == "gbnf":
        name, text = dice.choice(_GBNF)(dice, scale)
        body = bound(path, "gbnf", text)
    elif kind == "regex":
        number = whole(dice, 1000, 60_000, scale)
        name = f"a pattern of {number}"
        body = bound(path, "regex", f"([a-z ]*|[{_text(number)}]x|{_text(number // 4)})")
    else:
        number = whole(dice, 20, 2000, scale)
        name = f"{kind} {number}"
        schema = (_enum if kind == "enum" else _names)(number)
        if path == "/api/v2/generate":
            body = bound(path, "json_schema", as_text(schema))
        else:
            body = ask(path, json_schema=schema)
    return attack_of(f"{path} {name}", lambda: [Call(steps=[request(path, dumps(body))])], path)


def different(dice: random.Random, scale: float) -> Attack:
    """Several forms at once, of which none is another's."""
    path = dice.choice(CONSTRAINED)
    number = whole(dice, 2, 16, min(scale, 1.0))
    name, grammar = dice.choice(_GBNF)(dice, scale)

    def calls() -> list[Call]:
        return [
            Call(steps=[request(path, dumps(bound(path, "gbnf", f"{grammar}\nown{n} ::= [a]")))])
            for n in range(number)
        ]

    return attack_of(f"{path} {number} different: {name}", calls, path)
