"""Numbers of a schema within bounds that the library can hold: doubles, and integers of 64 bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal

from paddler_trio.language.grammars.patterns import TEXT_FORMATS
from paddler_trio.language.grammars.prepared_schema import Rules
from paddler_trio.language.grammars.schema_merging import NothingMatchesError, Schema, SchemaError
from paddler_trio.wire.json_schema import MAX_INTEGER, holds_multiples_of

_LEAST_INT64, _MOST_INT64 = -MAX_INTEGER, MAX_INTEGER
"""The least and the greatest integer of 64 bits, but one, that a double has, too."""
INTEGER_FORMATS = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32)},
    "int64": (_LEAST_INT64, _MOST_INT64),
    "uint64": (0, _MOST_INT64),
}
NUMBER_FORMATS = frozenset({"float", "double", "decimal"})


def prepared_number(rules: Schema, path: str, *, kind: str) -> Rules:
    low: int | None = None
    high: int | None = None
    named = rules.get("format")
    if isinstance(named, str) and named in INTEGER_FORMATS:
        low, high = INTEGER_FORMATS[named]
    elif named is not None and str(named) not in NUMBER_FORMATS | TEXT_FORMATS.keys():
        raise SchemaError(path, f"format: {named!r} is not known")
    if kind == "integer":
        low = _LEAST_INT64 if low is None else low
        high = _MOST_INT64 if high is None else high
    prepared: Rules = {"type": kind}
    step = rules.get("multipleOf")
    if step is not None:
        prepared["multipleOf"] = _step(step, path)
    least = _bound(rules, ("minimum", "exclusiveMinimum"), low, max, path)
    most = _bound(rules, ("maximum", "exclusiveMaximum"), high, min, path)
    for (key, bound), towards in ((least, math.inf), (most, -math.inf)):
        if bound is None:
            continue
        if kind == "integer" and not _LEAST_INT64 <= bound <= _MOST_INT64:
            raise SchemaError(path, f"{key}: {bound} does not fit 64 bits")
        try:
            nearest = float(bound)
        except OverflowError as error:
            raise SchemaError(path, f"{key}: {bound} fits no double") from error
        written = Decimal(repr(nearest))
        if (written < bound) is (towards > 0) and written != bound:
            nearest = math.nextafter(nearest, towards)
        prepared[key] = int(nearest) if nearest.is_integer() else nearest
    if least[1] is not None and most[1] is not None:
        are_excluded = "exclusive" in least[0] + most[0]
        if least[1] > most[1] or (least[1] == most[1] and are_excluded):
            raise NothingMatchesError(path, "minimum, maximum: nothing lies between the bounds")
    return prepared


def _bound(
    rules: Schema,
    keys: tuple[str, str],
    given: int | None,
    tighter: Callable[[Decimal, Decimal], Decimal],
    path: str,
) -> tuple[str, Decimal | None]:
    """The tightest bound on one side, and the keyword that says it."""
    found: tuple[str, Decimal | None] = keys[0], None if given is None else Decimal(given)
    for key in keys:
        value = rules.get(key)
        if value is None or (key == keys[1] and isinstance(value, bool)):
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise SchemaError(path, f"{key}: has to be a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise SchemaError(path, f"{key}: {value} is no number of JSON")
        here = Decimal(value) if isinstance(value, int) else Decimal(repr(value))
        if given is not None and key == keys[0] and tighter(Decimal(given), here) != here:
            continue
        if found[1] is None or tighter(found[1], here) == here:
            found = key, here
    if rules.get(keys[1]) is True and found[1] is not None:  # draft 4
        return keys[1], found[1]
    return found


def _step(step: object, path: str) -> object:
    if holds_multiples_of(step):
        return step
    raise SchemaError(path, f"multipleOf: {step} cannot be expressed in a grammar")
