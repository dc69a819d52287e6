"""The arguments of a call that are no JSON to the letter: cut off, or with a name twice."""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn

_BETWEEN: Final = re.compile(r"[\s,]*")
_COLON: Final = re.compile(r"\s*:\s*")
_END: Final = re.compile(r"\s*[,}]")


def members_of(text: str) -> dict[str, object]:
    """Return the members of the object ``text`` that are complete; of a name the last one."""
    found: dict[str, object] = {}
    position = text.find("{") + 1
    try:
        while True:
            match = _BETWEEN.match(text, position)
            key, position = _DECODER.raw_decode(text, match.end() if match else position)
            colon = _COLON.match(text, position)
            if colon is None or not isinstance(key, str):
                return found
            value, position = _DECODER.raw_decode(text, colon.end())
            json.dumps([key, value], ensure_ascii=False).encode()
            if _END.match(text, position) is None:  # a number may go on
                return found
            found[key] = value
    except (ValueError, RecursionError):  # what comes next is incomplete, or cannot be sent
        return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
