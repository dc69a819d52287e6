"""Strings of a schema as GBNF: in JSON's quotes, or as they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from paddler_trio.language.grammars.finite_automaton import (
    MAX_STATES,
    Automaton,
    character_ways,
    intersection,
    lengths,
    texts_but,
    texts_without,
    write,
)
from paddler_trio.language.grammars.gbnf_writer import (
    MAX_REPETITIONS,
    GrammarError,
    GrammarWriter,
    both,
    but,
    ranges_of,
)
from paddler_trio.language.grammars.regex_automaton import automaton_of
from paddler_trio.language.grammars.schema_merging import (
    NothingMatchesError,
    Schema,
    SchemaError,
    canonical,
)

_ESCAPE = r'"\\" (["\\bfnrt/] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))'
"""Every escape of JSON but halves of surrogate pairs."""

# The formats of JSON Schema as patterns. Each describes only texts that its format allows; corners
# that no model needs (the leap second, years before 1000, comments in mail addresses) are left out.
_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_LEAP_YEAR = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = f"(?:[1-9][0-9]{{3}}-{_DAY}|{_LEAP_YEAR}-02-29)"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_MAIL_WORD = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_LENGTH = (
    "P(?:[0-9]{1,6}W"
    "|(?:[0-9]{1,6}Y(?:[0-9]{1,6}M(?:[0-9]{1,6}D)?)?|[0-9]{1,6}M(?:[0-9]{1,6}D)?|[0-9]{1,6}D)"
    "(?:T{T})?|T{T})"
).replace(
    "{T}",
    "(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S)",
)

TEXT_FORMATS = {
    "date": _DATE,
    "time": f"{_CLOCK}{_ZONE}",
    "date-time": f"{_DATE}T{_CLOCK}{_ZONE}",
    "duration": _LENGTH,
    "email": rf"{_MAIL_WORD}(?:\.{_MAIL_WORD}){{0,3}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": f"(?:{_GROUP}:){{7}}{_GROUP}|::(?:{_GROUP}:){{0,5}}{_GROUP}|(?:{_GROUP}:){{1,7}}:",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]{0,30}://"
    r"(?:[A-Za-z0-9._~:/?#@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+",
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
}

INTEGER_FORMATS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (None, None),  # what we write has fewer digits
    "uint8": (0, 2**8 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, None),
}
NUMBER_FORMATS = frozenset({"float", "double", "decimal"})

_ABOUT_TEXTS = ("pattern", "format", "minLength", "maxLength")


class Place(Protocol):
    """Where strings are written: the grammar, and the texts that none of them may contain."""

    @property
    def grammar(self) -> GrammarWriter: ...
    @property
    def avoided(self) -> tuple[str, ...]: ...


def json_string(rules: Schema, path: str, place: Place) -> str:
    """The rule for a JSON string, quotes included; SchemaError if ``rules`` allow none."""
    texts, asked = place.grammar.texts, ("string", *_asked(rules, place))
    if asked not in texts:
        inside = _inside(rules, path, place)
        texts[asked] = place.grammar.rule(f'"\\"" {inside} "\\""', "string")
    return texts[asked]


def _asked(rules: Schema, place: Place) -> tuple[str, tuple[str, ...]]:
    """Equal where the same texts fit, and are to be free of the same ones."""
    return canonical([rules.get(key) for key in _ABOUT_TEXTS]), place.avoided


def json_key(names: Sequence[str], place: Place) -> str:
    """The rule for a JSON string that is none of ``names``.

    It is written without escapes of characters that need none, so that no name comes in by one.
    """
    if not names:
        return json_string({}, "$", place)
    automaton = texts_but(names)
    if place.avoided:
        automaton = intersection(automaton, texts_without(place.avoided), place.grammar.work)
    inside = write(automaton, place.grammar, in_json=True, hint="key")
    return place.grammar.rule(f'"\\"" {inside} "\\""', "key")


def bare_text(rules: Schema, path: str, place: Place, *, also: Automaton | None = None) -> str:
    """The rule for a text without quotes, which ends where one of the avoided texts begins.

    ``also``: a further automaton that the text has to fit.
    """
    texts, asked = place.grammar.texts, ("bare", also, *_asked(rules, place))
    if asked not in texts:
        automaton = _automaton(rules, path, place)
        if automaton is None:
            automaton = texts_without(place.avoided)
        if also is not None:
            automaton = intersection(automaton, also, place.grammar.work)
        texts[asked] = write(automaton, place.grammar, in_json=False, hint="text")
    return texts[asked]


def _inside(rules: Schema, path: str, place: Place) -> str:
    least, most = count_of(rules, "minLength", path), count_of(rules, "maxLength", path)
    is_plain = "pattern" not in rules and not _pattern_of_format(rules, path)
    grammar = place.grammar
    if is_plain and not (place.avoided and (least or most is not None)):
        if not place.avoided:
            return grammar.counted(_character(grammar), *_counts(least, most, path))
        escape = grammar.rule(_ESCAPE, "escape")
        automaton = texts_without(place.avoided)
        return write(automaton, grammar, in_json=True, hint="text", escape=escape)
    if is_plain and (most or least or 0) * sum(map(len, place.avoided)) >= MAX_STATES // 2:
        # Too long to count and to look for the avoided texts: their first characters are escaped.
        firsts = ranges_of((ord(text[0]), ord(text[0])) for text in place.avoided)
        return grammar.counted(_character(grammar, firsts), *_counts(least, most, path))
    automaton_here = _automaton(rules, path, place)
    assert automaton_here is not None, "there is a pattern or a length"
    return write(automaton_here, grammar, in_json=True, hint="text")


def _character(grammar: GrammarWriter, without: tuple[tuple[int, int], ...] = ()) -> str:
    raw = character_ways(
        both(((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF)), but(without)), in_json=True
    )
    return grammar.rule(f"{raw[0]} | {grammar.rule(_ESCAPE, 'escape')}", "character")


def _automaton(rules: Schema, path: str, place: Place) -> Automaton | None:
    """The texts that fit and avoid what they must; None if nothing is asked."""
    parts: list[Automaton] = []
    work = place.grammar.work
    try:
        if "pattern" in rules:
            pattern = rules["pattern"]
            if not isinstance(pattern, str):
                raise SchemaError(path, "pattern: has to be a text")
            parts.append(automaton_of(pattern, anchored=False, work=work))
        if named := _pattern_of_format(rules, path):
            parts.append(_format(named))
        least, most = count_of(rules, "minLength", path), count_of(rules, "maxLength", path)
        if least or most is not None:
            parts.append(lengths(*_counts(least, most, path)))
        if not parts:
            return None
        if place.avoided:
            parts.append(texts_without(place.avoided))
        automaton = parts[0]
        for part in parts[1:]:
            automaton = intersection(automaton, part, work)
    except SchemaError:
        raise
    except GrammarError as error:
        keys = [key for key in _ABOUT_TEXTS if key in rules]
        kind = NothingMatchesError if "no text can match" in str(error) else SchemaError
        raise kind(path, f"{', '.join(keys)}: {error}") from error
    return automaton


def _counts(least: int | None, most: int | None, path: str) -> tuple[int, int | None]:
    if most is not None and (least or 0) > most:
        raise NothingMatchesError(path, f"minLength, maxLength: {least} is more than {most}")
    return least or 0, most


def count_of(rules: Schema, key: str, path: str) -> int | None:
    """A keyword that counts, within the limits; None if it is not there."""
    value = rules.get(key)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SchemaError(path, f"{key}: has to be a count")
    if value > MAX_REPETITIONS:
        raise SchemaError(path, f"{key}: {value} is more than {MAX_REPETITIONS}")
    return value


def _pattern_of_format(rules: Schema, path: str) -> str | None:
    named = rules.get("format")
    if named is None:
        return None
    if isinstance(named, str) and (named in INTEGER_FORMATS or named in NUMBER_FORMATS):
        return None  # formats of numbers do not restrict strings
    if not isinstance(named, str) or named not in TEXT_FORMATS:
        known = ", ".join(sorted(TEXT_FORMATS))
        raise SchemaError(path, f"format: {named!r} is not one of {known}")
    return TEXT_FORMATS[named]


@lru_cache(maxsize=32)  # as many as there are formats
def _format(pattern: str) -> Automaton:
    return automaton_of(pattern, anchored=True)
