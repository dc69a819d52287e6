"""The texts in the program's sources, so that pages that quote them can be compared."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import attrs

SOURCES = Path(__file__).parents[1] / "src" / "paddler_trio"
GAP = "…"
"""Stands for a value, in a quotation and here."""


@attrs.frozen
class Sources:
    """What the sources say.

    Args:
      texts: each text, parts put together, a gap for each value in it.
      calls: of plain names, with the file.
    """

    texts: tuple[str, ...]
    calls: tuple[tuple[Path, str, ast.Call], ...]


@cache
def sources() -> Sources:
    """All of them, looked through once: that takes a second or two."""
    texts: dict[str, None] = {}
    calls: list[tuple[Path, str, ast.Call]] = []
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                calls.append((path, node.func.id, node))
            elif isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp)):
                text = joined(node)
                if text is not None and len(text) > 3:
                    texts[text] = None
    return Sources(tuple(texts), tuple(calls))


def joined(node: ast.AST) -> str | None:
    """The text that an expression is, with gaps; None for any other."""
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"\{\w+\}", GAP, text)
        case ast.Constant(value=bytes(raw)):
            return raw.decode("latin-1")
        case ast.JoinedStr(values=parts):
            return "".join(joined(part) or GAP for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = joined(left), joined(right)
            return None if first is None or second is None else first + second
    return None


def is_in_code(quoted: str) -> bool:
    """Whether a text of the sources says this; gaps of the quotation stand for anything.

    A sentence may come from several texts, of which each then stands in one: ``a: b`` is there if
    ``a`` and ``b`` are.
    """
    return _is_one(quoted) or any(
        _is_one(quoted[: at.start()]) and is_in_code(quoted[at.end() :])
        for at in re.finditer(r": |, (?=or )", quoted)
    )


def _is_one(quoted: str) -> bool:
    words = [re.escape(part) for part in quoted.split(GAP) if part.strip()]
    pattern = re.compile(".*?".join(words), re.S)
    return any(pattern.search(text) for text in sources().texts) if words else True
