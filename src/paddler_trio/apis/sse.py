"""Server-sent events, exactly framed: ``data:`` lines, optional ``event:`` names, comments.

One event is one blank-line-terminated block. JSON as we write it holds no line break, so an event
is always a single ``data:`` line and no proxy or client has to join any.
"""

from __future__ import annotations

from paddler_trio.wire.codec import dumps

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"content-encoding", b"identity"),
    (b"x-accel-buffering", b"no"),
]
"""No cache, no proxy buffer and no compression may sit between a token and its reader."""

DONE = b"data: [DONE]\n\n"


def event(value: object, *, name: str | None = None) -> bytes:
    """One event with ``value`` as JSON; ``name`` becomes its ``event:`` line."""
    data = b"data: " + dumps(value) + b"\n\n"
    return data if name is None else b"event: " + name.encode() + b"\n" + data


def comment(text: str) -> bytes:
    """A line that clients skip; it keeps proxies and time limits content. No line breaks in it."""
    assert "\n" not in text, text
    return b": " + text.encode() + b"\n\n"
