"""The method and target of a request as they came: ASGI shows the method in capitals, and no
difference between an empty query and none."""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.http.asgi import Scope

REQUEST_LINE: Final = "paddler_trio.request_line"
"""The ASGI extension in which :func:`request_line_of` finds it."""


@attrs.frozen
class RequestLine:
    """Args:
    method: its case tells one from another.
    target: a path with its query, or ``*``; without scheme and host if those came.
    """

    method: bytes
    target: bytes


def request_line_of(scope: Scope) -> RequestLine:
    """Of a request; under a server that does not tell it, what ASGI has of it."""
    line: RequestLine | None = scope.get("extensions", {}).get(REQUEST_LINE)
    if line is not None:
        return line
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    return RequestLine(scope["method"].encode("ascii"), target)
