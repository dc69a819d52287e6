"""What ASGI does not show of a request's head: the method's case, whether there is an empty query,
how the names of fields are spelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from paddler_trio.net.server.asgi import Scope

WRITTEN_HEAD: Final = "paddler_trio.written_head"
"""The ASGI extension in which :func:`written_head_of` finds it."""


@attrs.frozen
class WrittenHead:
    """Args:
    method: its case tells one from another.
    target: a path with its query, or ``*``; without scheme and host if those came.
    names: of the fields, one for each of the scope's headers.
    """

    method: bytes
    target: bytes
    names: Sequence[bytes]


def written_head_of(scope: Scope) -> WrittenHead:
    """Of a request; under a server that does not tell it, what ASGI has of it."""
    line: WrittenHead | None = scope.get("extensions", {}).get(WRITTEN_HEAD)
    if line is not None:
        return line
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    names = [name for name, _ in scope["headers"]]
    return WrittenHead(scope["method"].encode("ascii"), target, names)
