"""JSON text to plain values and back, as strict as the peers we speak to.

``json`` alone is too lenient: it keeps the last of two equal keys, reads ``NaN``, turns ``1e400``
into infinity and lets half a surrogate pair through, which then cannot be written again. All of
these are refused when text is read, so that ``dumps`` can write every value that ``loads`` returns.

Peers written in Rust refuse text nested 128 deep, and a request grows by a few levels when it is
wrapped in an envelope; hence the lower limit here.

A long text is counted before it is decoded (``json_limits``), which bounds the cost of decoding
untrusted text.

Escapes in JSON text that stand for half a surrogate pair.

``json`` decodes them to a text that cannot be written as UTF-8 again. Looking for them in the value
would hold the interpreter for as long as the value is large; this looks at the text, in slices.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from json.encoder import encode_basestring
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from paddler_trio.errors import WireError
from paddler_trio.wire.json_limits import (
    DEFAULT_LIMITS,
    SLICE_BYTES,
    UNCOUNTED_BYTES,
    Bools,
    JsonLimits,
    check_count,
    escaped_bytes,
)

ESCAPE_BYTES: Final = 6
"""The bytes of one escape, such as ``\\ud83d``."""


def has_half_pair(text: bytes | bytearray) -> bool:
    """Return whether ``text``, which must be valid JSON, escapes a high surrogate without a low one
    right behind it, or a low one without a high one before it."""
    whole = np.frombuffer(text, dtype=np.uint8)
    is_escaped = False  # the first byte of the slice, by a backslash at the end of the one before
    open_high = np.array([], dtype=np.intp)  # where a high one ended what was looked at
    for start in range(0, whole.size, SLICE_BYTES):
        slashes = whole[start : start + SLICE_BYTES] == ord("\\")
        escaped, is_escaped = escaped_bytes(slashes, is_escaped=is_escaped)
        places, is_high = _surrogates(whole, start + np.flatnonzero(slashes & ~escaped))
        if not places.size:
            continue
        places = np.concatenate((open_high, places))
        is_high = np.concatenate((np.ones(open_high.shape, dtype=np.bool_), is_high))
        is_pair = is_high[:-1] & ~is_high[1:] & (np.diff(places) == ESCAPE_BYTES)
        if not is_high[0] or (is_high[:-1] & ~is_pair).any() or (~is_high[1:] & ~is_pair).any():
            return True
        open_high = places[-1:] if is_high[-1] else places[:0]
    return bool(open_high.size)


def _surrogates(
    whole: npt.NDArray[np.uint8], escapes: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.intp], Bools]:
    """Return the ``escapes`` that are surrogates, and which of them are high ones."""
    escapes = escapes[whole[escapes + 1] == ord("u")]
    lower = 0x20  # what makes a letter small, and leaves a digit as it is
    escapes = escapes[(whole[escapes + 2] | lower) == ord("d")]
    digits = whole[escapes + 3] | lower
    is_surrogate = digits >= ord("8")
    return escapes[is_surrogate], digits[is_surrogate] < ord("c")


MAX_DEPTH = 120
"""Objects and arrays inside one another, the outermost counted."""

MAX_INTEGER_DIGITS = 300
"""Longer integers do not fit a double, which is what a peer would fall back to."""

MAX_NUMBER_CHARS = 1_100
"""The longest decimal expansion of a double has 1,075 digits and a point."""

RUN_VALUES = 2_048
"""Scalars that are written with the interpreter held: five milliseconds of the slowest floats."""

RUN_CHARS = 262_144
"""The characters of one string, likewise."""


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
    if len(text) > MAX_NUMBER_CHARS:
        raise WireError(f"a number of {len(text)} characters; {MAX_NUMBER_CHARS} are read")
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


@attrs.frozen
class Items:
    """A list whose items are made while it is written, and not before; ``size`` is how many values
    they have."""

    make: Callable[[], Iterable[object]]
    size: int


@attrs.frozen
class JsonText:
    """A value that was written already."""

    text: str


def _value_of(value: object) -> object:
    if isinstance(value, Items):
        return list(value.make())
    if isinstance(value, JsonText):
        return json.loads(value.text)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


_CONTAINERS = (dict, list)
_ENCODER = json.JSONEncoder(
    ensure_ascii=False,
    allow_nan=False,
    check_circular=False,
    separators=(",", ":"),
    default=_value_of,
)
_SORTED_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), sort_keys=True
)


def loads(data: bytes | bytearray | str, limits: JsonLimits = DEFAULT_LIMITS) -> object:
    """Read one JSON text.

    Returns:
      ``None``, ``bool``, ``int``, ``float``, ``str``, ``list`` or ``dict`` with ``str`` keys;
      finite numbers and encodable text only, at most ``MAX_DEPTH`` deep.

    Raises:
      JsonLimitError: it holds more than ``limits`` allow, and nothing was decoded.
      WireError: not UTF-8, not JSON, or JSON a peer would refuse (see the module).
    """
    if len(data) > UNCOUNTED_BYTES:
        check_count(data.encode(errors="surrogatepass") if isinstance(data, str) else data, limits)
    text = _text(data)
    try:
        value: object = _DECODER.decode(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise WireError(f"not valid JSON: {error}") from error
    # Counting brackets bounds the depth from above and is far cheaper than walking the value.
    if text.count("{") + text.count("[") > MAX_DEPTH and is_deeper(value, MAX_DEPTH):
        raise _too_deep()
    if "\\u" in text and has_half_pair(data if isinstance(data, bytes) else text.encode()):
        raise WireError("text that is not Unicode: surrogates not allowed")
    return value


def dumps(value: object) -> bytes:
    """Write ``value`` compactly as UTF-8.

    Raises:
      WireError: it holds NaN, an infinity, half a surrogate pair, or something JSON has no
        form for.
    """
    return _encode(_ENCODER, value)


def one_text(value: object) -> str | None:
    """Return an object with one member that is a text, as ``dumps`` writes it, and in a tenth of
    the time of an encoder, which builds itself anew for each value; None for everything else. That
    is a token, nearly always."""
    if type(value) is not dict or len(value) != 1:
        return None
    ((name, text),) = value.items()
    if type(text) is not str or type(name) is not str:
        return None
    return f"{{{encode_basestring(name)}:{encode_basestring(text)}}}"


def one_text_within(value: object) -> str | None:
    """Return the one text within an object whose one member is an object as :func:`one_text` takes
    it."""
    if type(value) is not dict or len(value) != 1:
        return None
    ((name, inner),) = value.items()
    text = one_text(inner)
    return (
        None if text is None or type(name) is not str else f"{{{encode_basestring(name)}:{text}}}"
    )


def dumps_in_runs(value: object) -> bytes:
    """Return what ``dumps`` does, slower, and never long with the interpreter held; for a worker
    thread.

    Raises:
      WireError: as ``dumps``; or more than a run is nested deeper than ``MAX_DEPTH``.
    """
    return b"".join(runs_of(value))


def dumps_within(value: object, most_bytes: int) -> bytes | None:
    """Write as ``dumps_in_runs`` does; return None where that has over ``most_bytes``."""
    written = bytearray()
    for piece in runs_of(value):
        written += piece
        if len(written) > most_bytes:
            return None
    return bytes(written)


def runs_of(value: object) -> Iterator[bytes]:
    """The pieces of what ``dumps_in_runs`` returns, each made when it is asked for."""
    return _runs(value, MAX_DEPTH)


def beginning_of(value: object, num_chars: int) -> str:
    """Return the beginning of what ``dumps`` writes; costs no more than a run, however long the
    rest is.

    Raises:
      WireError: as ``dumps``, if it is in what was written.
    """
    written = b""
    for piece in runs_of(value):
        written += piece
        if len(written) > 4 * num_chars:  # a character has four bytes at the most
            break
    return written.decode()[:num_chars]


def _runs(value: object, depth: int) -> Iterator[bytes]:
    if isinstance(value, str) and len(value) > RUN_CHARS:
        yield b'"'
        for start in range(0, len(value), RUN_CHARS):
            yield dumps(value[start : start + RUN_CHARS])[1:-1]
        yield b'"'
    elif not isinstance(value, (*_CONTAINERS, Items)) or not is_long(value):
        yield dumps(value)
    elif depth == 0:
        raise _too_deep()
    elif isinstance(value, dict):
        yield from _members_in_runs(value, depth - 1)
    else:
        items = value.make() if isinstance(value, Items) else value
        yield from _items_in_runs(items, depth - 1)


def _items_in_runs(items: Iterable[object], depth: int) -> Iterator[bytes]:
    """Neighbours that are one run together are written at once, others by themselves."""
    before, run, left = b"[", list[object](), RUN_VALUES
    for item in items:
        left = _left_after(item, left - 1)
        if left < 0 and run:
            yield before + dumps(run)[1:-1]
            before, run, left = b",", [], _left_after(item, RUN_VALUES - 1)
        if left >= 0:
            run.append(item)
        else:
            yield before
            yield from _runs(item, depth)
            before, left = b",", RUN_VALUES
    yield (before + dumps(run)[1:-1] if run or before == b"[" else b"") + b"]"


def _members_in_runs(members: dict[str, object], depth: int) -> Iterator[bytes]:
    before, run, left = b"{", dict[str, object](), RUN_VALUES
    for key, value in members.items():
        left = _left_after(value, left - 1)
        if left < 0 and run:
            yield before + dumps(run)[1:-1]
            before, run, left = b",", {}, _left_after(value, RUN_VALUES - 1)
        if left >= 0:
            run[key] = value
        else:
            yield before + dumps(key) + b":"
            yield from _runs(value, depth)
            before, left = b",", RUN_VALUES
    yield (before + dumps(run)[1:-1] if run else b"") + b"}"


def is_long(value: object) -> bool:
    """Return whether ``value`` is more than is written at once in runs; costs no more than a
    run."""
    return _left_after(value, RUN_VALUES) < 0


def _left_after(value: object, left: int) -> int:
    """Return what a run has left, of ``left``, for more values once ``value`` is in it; below zero
    if it does not fit. Costs no more than a run."""
    nodes = [value]
    while nodes and left >= 0:
        node = nodes.pop()
        if isinstance(node, str):
            if len(node) > RUN_CHARS // 64:  # a run may have many of these
                left -= len(node) * RUN_VALUES // RUN_CHARS
        elif isinstance(node, Items):
            left -= node.size
        elif isinstance(node, _CONTAINERS):
            left -= len(node)
            if left >= 0:
                nodes += node.values() if isinstance(node, dict) else node
    return left


def canonical(value: object) -> bytes:
    """Return what ``dumps`` does with keys sorted: equal values give equal bytes, so these can be
    digested."""
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


def _text(data: bytes | bytearray | str) -> str:
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


def is_deeper(value: object, limit: int) -> bool:
    """Return whether containers nest more than ``limit`` deep; level by level, no recursion."""
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
