"""JSON that is accepted from models: every text in it can be sent as UTF-8, every number is finite.

JSON allows others.
"""

from __future__ import annotations

import json
import math
from typing import NoReturn

from paddler_trio.language.answers.call_events import Arguments


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:20]} is too large for a number")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def parse_json(text: str) -> object:
    """The one JSON value that ``text`` is, blanks around it allowed.

    Raises:
      ValueError: it is not, or holds half a character, or a number beyond all bounds.
      RecursionError: nested deeper than the interpreter follows.
    """
    stripped = text.strip()
    value: object
    value, end = _DECODER.raw_decode(stripped)
    if end != len(stripped):
        raise ValueError(f"Extra data at character {end}")
    if "\\u" in stripped:  # only escapes can bring half a character
        json.dumps(value, ensure_ascii=False).encode()
    return value


def arguments_of(value: object) -> Arguments:
    """Objects stay, nothing means none, and JSON inside a string is opened, as OpenAI writes it."""
    if isinstance(value, str):
        try:
            inner = parse_json(value)
        except ValueError:
            return value
        return inner if isinstance(inner, dict) else value
    if value is None:
        return {}
    return value if isinstance(value, dict) else json.dumps(value, ensure_ascii=False)
