"""JSON text to plain values and back, as strict as the peers we speak to.

``json`` alone is too kind: it keeps the last of two equal keys, reads ``NaN``, turns ``1e400``
into infinity and lets half a surrogate pair through, which then cannot be written again. Each of
these is refused here, where the text arrives, so that every value that ``loads`` returned can be
given to ``dumps``.

Peers written in Rust refuse text nested 128 deep, and a request grows by a few levels when it is
wrapped in an envelope; hence the lower limit here.
"""

from __future__ import annotations

import json
import math
import re

from paddler_trio.errors import WireError

MAX_DEPTH = 120
"""Objects and arrays inside one another, the outermost counted."""

MAX_INTEGER_DIGITS = 300
"""Longer integers do not fit a double, which is what a peer would fall back to."""

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise WireError(f"duplicate field {key!r}")
            seen.add(key)
    return value


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise WireError(f"number out of range: {text[:40]}")
    return number


def _bounded(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise WireError(f"number out of range: an integer of {len(text)} digits")
    return int(text)


def _constant(name: str) -> object:
    raise WireError(f"not valid JSON: {name} is not a number here")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_finite, parse_int=_bounded, parse_constant=_constant
)
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)
_SORTED_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), sort_keys=True
)


def loads(data: bytes | str) -> object:
    """Read one JSON text.

    Returns:
      ``None``, ``bool``, ``int``, ``float``, ``str``, ``list`` or ``dict`` with ``str`` keys;
      finite numbers and encodable text only, at most ``MAX_DEPTH`` deep.

    Raises:
      WireError: not UTF-8, not JSON, or JSON a peer would refuse (see the module).
    """
    text = _text(data)
    try:
        value: object = _DECODER.decode(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise WireError(f"not valid JSON: {error}") from error
    # Counting brackets bounds the depth from above and is far cheaper than walking the value.
    if text.count("{") + text.count("[") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise _too_deep()
    if _SURROGATE_ESCAPE.search(text):
        dumps(value)
    return value


def dumps(value: object) -> bytes:
    """Write ``value`` compactly as UTF-8.

    Raises:
      WireError: it holds NaN, an infinity, half a surrogate pair, or something JSON has no
        form for.
    """
    return _encode(_ENCODER, value)


def canonical(value: object) -> bytes:
    """As ``dumps``, keys sorted: equal values give equal bytes, so these can be digested."""
    return _encode(_SORTED_ENCODER, value)


def _encode(encoder: json.JSONEncoder, value: object) -> bytes:
    try:
        return encoder.encode(value).encode()
    except UnicodeEncodeError as error:
        raise WireError(f"text that is not Unicode: {error.reason}") from error
    except RecursionError:
        raise _too_deep() from None
    except (TypeError, ValueError) as error:
        raise WireError(f"no JSON form: {error}") from error


def _text(data: bytes | str) -> str:
    try:
        if isinstance(data, str):
            if not data.isascii():
                data.encode()
            return data
        return data.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except UnicodeEncodeError as error:
        raise WireError(f"text that is not Unicode: {error.reason}") from error


def _too_deep() -> WireError:
    return WireError(f"JSON nested deeper than {MAX_DEPTH} levels")


def _is_deeper(value: object, limit: int) -> bool:
    """Whether containers nest more than ``limit`` deep; level by level, no recursion."""
    level: list[object] = [value]
    for _ in range(limit):
        children: list[object] = []
        for node in level:
            if isinstance(node, dict):
                children.extend(node.values())
            elif isinstance(node, list):
                children.extend(node)
        level = children
        if not level:
            return False
    return any(isinstance(node, dict | list) for node in level)
