"""Server-sent events, exactly framed: ``data:`` lines, optional ``event:`` names, comments.

An event is one block that a blank line ends. JSON as we write it holds no line break, so an event
is always a single ``data:`` line and no proxy or client has to join any.
"""

from __future__ import annotations

from typing import Final

from paddler_trio.net.server.asgi import Header
from paddler_trio.wire.codec import dumps

UNBUFFERED: Final[list[Header]] = [
    (b"content-encoding", b"identity"),
    (b"x-accel-buffering", b"no"),
]
"""Keeps compression and proxy buffers from between an event and its reader."""

HEADERS: Final[list[Header]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    *UNBUFFERED,
]

DONE: Final = b"data: [DONE]\n\n"


def event(value: object, *, name: str | None = None) -> bytes:
    """One event with ``value`` as JSON; ``name`` becomes its ``event:`` line."""
    data = data_event(dumps(value))
    return data if name is None else b"event: " + name.encode() + b"\n" + data


def data_event(data: bytes) -> bytes:
    """One event with ``data``, which holds no line break."""
    return b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """A line that clients skip; it keeps proxies and idle timeouts quiet. No line breaks in it."""
    assert "\n" not in text, text
    return b": " + text.encode() + b"\n\n"
