"""The input of a call as an object, whatever its arguments are, and where they were cut off.

A client that reads a stream makes the same of its deltas: the last of two values under one name,
and of a text that ends too early what is whole in it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from typing import NoReturn

from paddler_trio.balancer.apis.shapes import Json

_CLOSING = {"{": "}", "[": "]"}
_MOST_TRIED = 6


def input_of(arguments: str) -> Json:
    """Return the object that ``arguments`` are, or begin; empty where they are none."""
    for text in (arguments, *_closed(arguments)):
        try:
            value = json.loads(text, strict=False, parse_constant=_refuse_constant)
            json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError):  # or a surrogate alone, which cannot be sent
            continue
        return value if isinstance(value, dict) else {}
    return {}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _closed(text: str) -> Iterator[str]:
    """Return the beginnings of ``text``, the longest first, with everything closed that is open
    there."""
    ends: deque[int] = deque(maxlen=_MOST_TRIED)
    closing = _closing_of(text, ends)
    yield text + closing
    for place in reversed(ends):
        yield text[:place] + _closing_of(text[:place], deque(maxlen=1))


def _closing_of(text: str, ends: deque[int]) -> str:
    """Return what closes all that is open; ``ends`` gets the places where values may end."""
    open_ones: list[str] = []
    in_string = is_escaped = False
    for place, character in enumerate(text):
        if in_string:
            in_string = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
        elif character == '"':
            in_string = True
        elif character == ",":
            ends.append(place)
        elif character in _CLOSING:
            open_ones.append(_CLOSING[character])
            ends.append(place + 1)
        elif character in "}]":
            del open_ones[-1:]
            ends.append(place + 1)
    return ('"' if in_string else "") + "".join(reversed(open_ones))
