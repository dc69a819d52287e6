"""Copies of the bundled model whose answers are told apart by their first blank.

They have the same weights. Only their vocabulary writes another blank where the bundled one writes
a space, and their template does the same with what they are asked, so they say the same with other
blanks, however their numbers round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

BLANKS: Final = {" ": "Ġ", "\t": "ĉ", "\v": "ċ"}
"""How byte-level vocabularies write them; each takes two bytes."""
NEITHER: Final = b"\xff\xff"
"""In no text."""
_PARTS: Final = (
    (b"tokenizer.ggml.tokens", b"tokenizer.ggml.token_type"),
    (b"tokenizer.ggml.merges", b"tokenizer.ggml.bos_token_id"),
)
_COMMENT: Final = b"{#- ChatML with tools, reasoning and an `enable_thinking` switch. -#}"
_CONTENT: Final = b"{{- content -}}"


def write_model(path: Path, blank: str) -> Path:
    """Write the copy that answers with this blank to ``path``."""
    space, other = BLANKS[" "].encode(), BLANKS[blank].encode()
    data = BUNDLED_MODEL.read_bytes()
    for begin, end in _PARTS:
        first, last = data.index(begin), data.index(end)
        part = data[first:last].replace(space, NEITHER).replace(other, space)
        data = data[:first] + part.replace(NEITHER, other) + data[last:]
    content = b"{{- content.replace(' ', %s) -}}" % repr(blank).encode()
    longer = len(content) - len(_CONTENT)
    data = data.replace(_COMMENT, _COMMENT[: -longer - 4] + b" -#}", 1)  # all stays at its place
    data = data.replace(_CONTENT, content, 1)
    assert len(data) == BUNDLED_MODEL.stat().st_size
    path.write_bytes(data)
    return path


def blanks_in(text: str) -> set[str]:
    """Those that it has: more than one, and two models have written it."""
    return {blank for blank in BLANKS if blank in text}
