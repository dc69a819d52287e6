"""For whom a request is, as far as the queue cares; said in headers, so that no body changes."""

from __future__ import annotations

from paddler_trio.http.asgi import HttpProblem, Scope, header
from paddler_trio.scheduler.dispatch.fair_order import Priority

CLIENT_HEADER = b"x-paddler-client"
PRIORITY_HEADER = b"x-paddler-priority"
MAX_CLIENT_CHARS = 128
KEY_NAME = "paddler_trio.key_name"
"""Where a scope has the name of the API key the request came with, if it came with one."""


def who_asks(scope: Scope) -> tuple[str, Priority]:
    """The client among whom the queue is fair, and the class; HttpProblem 400 for a bad header.

    With an API key the client is its name: nobody gets more turns by calling himself many.
    Without one it is what ``X-Paddler-Client`` says, any text; without both, everybody is the one
    anonymous client. ``X-Paddler-Priority`` is high, normal (the default) or low.
    """
    said_bytes = len(header(scope, CLIENT_HEADER) or b"")
    if said_bytes > MAX_CLIENT_CHARS:
        raise HttpProblem(
            400, f"X-Paddler-Client has {said_bytes} characters, the limit is {MAX_CLIENT_CHARS}"
        )
    client = named_client(scope)
    name = (header(scope, PRIORITY_HEADER) or b"normal").decode("latin-1").strip().upper()
    if name not in Priority.__members__:
        raise HttpProblem(
            400, f"X-Paddler-Priority is {name.lower()!r}, must be high, normal or low"
        )
    return client, Priority[name]


def named_client(scope: Scope) -> str:
    """The name of the request's API key, or what ``X-Paddler-Client`` says; empty without both."""
    said = (header(scope, CLIENT_HEADER) or b"")[:MAX_CLIENT_CHARS].decode("latin-1")
    return str(scope.get(KEY_NAME, "")) or said
