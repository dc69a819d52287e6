"""TOML text to plain values, within a limit that the standard library lacks.

``tomllib`` looks at the beginning of a dotted key anew for each of its parts: a key of 30,000 parts
takes it a quarter of a minute, and one that fills a file of a megabyte more than an hour. So keys
are counted before it reads any.
"""

from __future__ import annotations

import re
import tomllib
from typing import Final

MAX_KEY_PARTS: Final = 32
"""The parts of one dotted key, or of the name of one table."""

_TOKEN: Final = re.compile(
    r'"""(?:[^"\\]|\\.|""?(?!"))*+"{3,5}'
    r"|'''(?:[^']|''?(?!'))*+'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*+"'
    r"|'[^'\n]*+'"
    r"|[A-Za-z0-9_-]++"
    r"|\#[^\n]*+"
    r"|[ \t]++"
    r"|.",
    re.DOTALL,
)
"""A text, a bare word, a comment, blanks, or one other character."""


def loads(text: str) -> dict[str, object]:
    """Read one document.

    Raises:
      ValueError: it is not TOML, or a key has too many parts.
      RecursionError: it is nested too deeply.
    """
    _check_keys(text)
    return tomllib.loads(text)


def _check_keys(text: str) -> None:
    parts, wants_part = 0, True
    for token in _TOKEN.finditer(text):
        first = token[0][0]
        if first in "\"'" and len(token[0]) == 1:
            return  # a text without an end: what follows is no key, and the parser says so
        if first in " \t":
            continue
        if first == ".":
            wants_part = True
        elif first in "\"'_-" or (first.isascii() and first.isalnum()):
            parts = parts + 1 if wants_part else 1
            wants_part = False
        else:
            parts, wants_part = 0, True
        if parts > MAX_KEY_PARTS:
            line = text.count("\n", 0, token.start()) + 1
            raise ValueError(f"line {line}: a key has more parts than the limit, {MAX_KEY_PARTS}")
